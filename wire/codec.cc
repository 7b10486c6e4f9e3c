#include "wire/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <limits>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/text.h"
#include "wire/fields.h"

namespace holdfast::wire {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::pbf_writer;

template <class T>
std::string encode_struct(const T& value);

// proto3: a member that is zero or empty is not written.
void write(pbf_writer& out, std::uint32_t number, const std::string& value) {
  if (!value.empty()) out.add_string(number, value);
}
void write(pbf_writer& out, std::uint32_t number, double value) {
  if (std::bit_cast<std::uint64_t>(value) != 0) out.add_double(number, value);  // -0.0 is not zero
}
template <std::signed_integral T>
void write(pbf_writer& out, std::uint32_t number, T value) {
  if (value != 0) out.add_sint64(number, value);
}
template <std::unsigned_integral T>  // bool too
void write(pbf_writer& out, std::uint32_t number, T value) {
  if (value != 0) out.add_uint64(number, value);
}
template <class T>
requires std::is_enum_v<T>
void write(pbf_writer& out, std::uint32_t number, T value) {
  write(out, number, static_cast<std::uint8_t>(value));
}
template <class T>
requires requires {
  Fields<T>::kList;
}
void write(pbf_writer& out, std::uint32_t number, const T& value) {
  const std::string bytes = encode_struct(value);
  if (!bytes.empty()) out.add_message(number, bytes);
}
void write(pbf_writer& out, std::uint32_t number, const std::vector<std::string>& list) {
  for (const auto& item : list) out.add_string(number, item);
}
void write(pbf_writer& out, std::uint32_t number, const std::vector<std::uint32_t>& list) {
  out.add_packed_uint32(number, list.begin(), list.end());
}
template <class T>
void write(pbf_writer& out, std::uint32_t number, const std::vector<T>& list) {
  // No nested writer: that would leave out an empty entry.
  for (const T& item : list) out.add_message(number, encode_struct(item));
}

template <class T>
std::string encode_struct(const T& value) {
  std::string bytes;
  pbf_writer out(bytes);
  std::apply([&](const auto&... field) { (write(out, field.number, value.*field.member), ...); },
             Fields<T>::kList);
  return bytes;
}

// The read functions return false if the bytes can not be this field. protozero throws if they are
// no protobuf.
template <class T>
bool read_struct(pbf_reader in, T& value);

bool read(pbf_reader& in, std::string& value, const Bounds& bounds) {
  if (!in.has_wire_type(pbf_wire_type::length_delimited)) return false;
  const auto view = in.get_view();
  if (view.size() > bounds.text_bytes) return false;
  value.assign(view.data(), view.size());
  return true;
}
bool read(pbf_reader& in, double& value, const Bounds&) {
  if (!in.has_wire_type(pbf_wire_type::fixed64)) return false;
  value = in.get_double();
  return true;
}
bool read(pbf_reader& in, bool& value, const Bounds&) {
  if (!in.has_wire_type(pbf_wire_type::varint)) return false;
  value = in.get_uint64() != 0;
  return true;
}
template <std::integral T>
bool read(pbf_reader& in, T& value, const Bounds&) {
  if (!in.has_wire_type(pbf_wire_type::varint)) return false;
  if constexpr (std::signed_integral<T>) {
    const std::int64_t wide = in.get_sint64();
    value = static_cast<T>(wide);
    return std::in_range<T>(wide);
  } else {
    const std::uint64_t wide = in.get_uint64();
    value = static_cast<T>(wide);
    return std::in_range<T>(wide);
  }
}
template <class T>
requires std::is_enum_v<T>
bool read(pbf_reader& in, T& value, const Bounds& bounds) {
  std::uint8_t number = 0;
  if (!read(in, number, bounds)) return false;
  value = static_cast<T>(number);
  return true;
}
template <class T>
requires requires {
  Fields<T>::kList;
}
bool read(pbf_reader& in, T& value, const Bounds&) {
  if (!in.has_wire_type(pbf_wire_type::length_delimited)) return false;
  return read_struct(in.get_message(), value);
}
bool read(pbf_reader& in, std::vector<std::uint32_t>& list, const Bounds& bounds) {
  if (!in.has_wire_type(pbf_wire_type::length_delimited)) return false;
  for (const std::uint64_t wide : in.get_packed_uint64()) {
    if (list.size() == bounds.entries || !std::in_range<std::uint32_t>(wide)) return false;
    list.push_back(static_cast<std::uint32_t>(wide));
  }
  return true;
}
template <class T>
bool read(pbf_reader& in, std::vector<T>& list, const Bounds& bounds) {
  return list.size() < bounds.entries && read(in, list.emplace_back(), bounds);
}

// Whether a member may have this value. Asked once the whole struct is read.
template <class T>
bool is_valid(const T& value) {
  if constexpr (std::is_enum_v<T>) return is_known(value);
  return true;
}

// Whether a value of this type can be out of bounds.
template <class T>
constexpr bool kHasBounds = std::is_same_v<T, std::string>;
template <class T>
constexpr bool kHasBounds<std::vector<T>> = true;
template <class T>
requires requires {
  Fields<T>::kList;
}
constexpr bool kHasBounds<T> = std::apply(
    []<class... Members>(const Field<T, Members>&... field) {
      return ((kHasBounds<Members> && !(std::is_same_v<Members, std::string> &&
                                        field.bounds.text_bytes == Bounds::kAnyBytes)) ||
              ...);
    },
    Fields<T>::kList);

// Whether lists and texts are within the bounds that the read functions check.
template <class T>
bool is_within(const T& value, const Bounds& bounds) {
  if constexpr (std::is_same_v<T, std::string>) {
    return value.size() <= bounds.text_bytes;
  } else if constexpr (requires { Fields<T>::kList; } && kHasBounds<T>) {
    return std::apply(
        [&](const auto&... field) { return (is_within(value.*field.member, field.bounds) && ...); },
        Fields<T>::kList);
  } else if constexpr (kHasBounds<T>) {
    const auto is_good = [&](const auto& item) { return is_within(item, bounds); };
    return value.size() <= bounds.entries && (!kHasBounds<typename T::value_type> ||
                                              std::all_of(value.begin(), value.end(), is_good));
  }
  return true;
}

// Sets a member to zero or empty; in a struct, all members.
template <class T>
void clear(T& value) {
  if constexpr (requires { Fields<T>::kList; }) {
    std::apply([&](const auto&... field) { (clear(value.*field.member), ...); }, Fields<T>::kList);
  } else {
    value = {};
  }
}

template <class T>
bool read_struct(pbf_reader in, T& value) {
  // proto3: an absent field is zero, whatever the struct's own initialiser says.
  std::apply([&](const auto&... field) { (clear(value.*field.member), ...); }, Fields<T>::kList);
  while (in.next()) {
    bool known = false;
    bool good = true;
    const auto try_one = [&](const auto& field) {
      if (field.number != in.tag()) return;
      known = true;
      good = read(in, value.*field.member, field.bounds);
    };
    std::apply([&](const auto&... field) { (try_one(field), ...); }, Fields<T>::kList);
    if (!good) return false;
    if (!known) in.skip();
  }
  return std::apply([&](const auto&... field) { return (is_valid(value.*field.member) && ...); },
                    Fields<T>::kList);
}

// The only place that catches protozero's exceptions.
template <class T>
bool decode_struct(std::string_view bytes, T& value) {
  try {
    return read_struct(pbf_reader(bytes.data(), bytes.size()), value);
  } catch (const protozero::exception&) {
    return false;
  }
}

constexpr std::size_t kKinds = std::variant_size_v<Message>;

template <std::size_t kIndex>
bool decode_kind(std::string_view body, Message& message) {
  auto& value = message.emplace<kIndex>();
  return decode_struct(body, value);
}

template <std::size_t... kIndex>
constexpr auto decoders(std::index_sequence<kIndex...>) {
  return std::array{&decode_kind<kIndex>...};
}

}  // namespace

std::uint8_t kind_of(const Message& message) {
  return static_cast<std::uint8_t>(message.index() + 1);
}

std::string_view kind_name(std::uint8_t kind) {
  return kind >= 1 && kind <= kKinds ? kMessageNames.at(kind - 1U) : "unknown";
}

bool is_within_bounds(const Message& message) {
  return std::visit([](const auto& value) { return is_within(value, {}); }, message);
}

std::string encode(const Message& message) {
  return std::visit([](const auto& value) { return encode_struct(value); }, message);
}

Result<Message> decode(std::uint8_t kind, std::string_view body) {
  static constexpr auto kDecoders = decoders(std::make_index_sequence<kKinds>());
  if (kind == 0 || kind > kKinds) {
    return Error{Blame::kPeer, cat("the peer sent a message of the unknown kind ", kind,
                                   "; use the same version of Holdfast on all hosts")};
  }
  Message message;
  if (!kDecoders.at(kind - 1U)(body, message)) {
    return Error{Blame::kPeer, cat("the peer sent a malformed ", kind_name(kind),
                                   "; use the same version of Holdfast on all hosts")};
  }
  return message;
}

std::string encode(const Formation& formation) {
  HF_ASSERT(is_within(formation, {}));
  return encode_struct(formation);
}

Result<Formation> decode_formation(std::string_view bytes) {
  Formation formation;
  if (!decode_struct(bytes, formation)) {
    return Error{Blame::kPeer, "the journal's formation is malformed"};
  }
  return formation;
}

std::string encode(const Seat& seat) {
  return encode_struct(seat);
}

Result<Seat> decode_seat(std::string_view bytes) {
  Seat seat;
  if (!decode_struct(bytes, seat)) return Error{Blame::kPeer, "the journal's seat is malformed"};
  return seat;
}

std::string encode(const Remarked& remark) {
  return encode_struct(remark);
}

Result<Remarked> decode_remark(std::string_view bytes) {
  Remarked remark;
  if (!decode_struct(bytes, remark)) {
    return Error{Blame::kPeer, "the journal's remark is malformed"};
  }
  return remark;
}

}  // namespace holdfast::wire
