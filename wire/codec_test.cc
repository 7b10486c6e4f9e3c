#include "wire/codec.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <set>
#include <string>

#include "wire/fields.h"
#include "wire/frame.h"
#include "wire/samples_for_test.h"

namespace holdfast::wire {
namespace {

std::string bytes_of(std::initializer_list<int> values) {
  std::string out;
  for (const int value : values) out.push_back(static_cast<char>(value));
  return out;
}

constexpr std::uint8_t kRegister = 1;
constexpr std::uint8_t kAssignment = 2;
constexpr std::uint8_t kAgentState = 5;
constexpr std::uint8_t kHeartbeat = 17;
constexpr std::uint8_t kGet = 20;
constexpr std::uint8_t kPlaces = 23;

// A message of every kind as its struct's initialisers make it.
template <std::size_t... kIndex>
std::vector<Message> plain_messages(std::index_sequence<kIndex...>) {
  return {Message(std::in_place_index<kIndex>)...};
}

TEST(Codec, ReadsBackEveryMessageItWrote) {
  auto messages = extreme_messages();
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (auto& message : plain_messages(std::make_index_sequence<std::variant_size_v<Message>>())) {
    messages.push_back(message);
  }
  std::set<std::uint8_t> kinds;
  for (const auto& message : messages) {
    kinds.insert(kind_of(message));
    const auto back = decode(kind_of(message), encode(message));
    ASSERT_TRUE(back) << back.error().what;
    EXPECT_EQ(*back, message) << kind_name(kind_of(message));
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<Message>);
}

TEST(Codec, ReadsBackTheFormationItWrote) {
  for (const Formation& formation : {Formation{}, extreme_formation()}) {
    const auto back = decode_formation(encode(formation));
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, formation);
  }
}

TEST(Codec, ReadsBackTheRemarkItWrote) {
  for (const Remarked& remark : {Remarked{}, extreme_remark()}) {
    const auto back = decode_remark(encode(remark));
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, remark);
  }
  EXPECT_FALSE(decode_remark(bytes_of({0x12, 2, 0x08, 250}))) << "no such kind of reason";
}

TEST(Codec, NamesEveryKindAfterItsStruct) {
  EXPECT_EQ(kind_name(kind_of(Register{})), "Register");
  EXPECT_EQ(kind_name(kind_of(AgentState{})), "AgentState");
  EXPECT_EQ(kind_name(kind_of(Finished{})), "Finished");
  EXPECT_EQ(kind_name(kind_of(Heartbeat{})), "Heartbeat");
  EXPECT_EQ(kind_of(Heartbeat{}), kHeartbeat);
  EXPECT_EQ(kind_name(0), "unknown");
  EXPECT_EQ(kind_name(35), "unknown");
}

TEST(Codec, KeepsTheBitsOfALoss) {
  for (const double loss : {-0.0, std::nan(""), 1e-320}) {
    const auto back = decode(kind_of(Progress{}), encode(Progress{0, 0, loss}));
    ASSERT_TRUE(back);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(std::get<Progress>(*back).loss),
              std::bit_cast<std::uint64_t>(loss));
  }
}

TEST(Codec, TakesAnAbsentFieldForZero) {
  const auto accepted = decode(kAssignment, "");
  ASSERT_TRUE(accepted);
  EXPECT_EQ(std::get<Assignment>(*accepted).rank, 0);  // The struct's own initial value is -1.
  const auto registration = decode(kRegister, "");
  ASSERT_TRUE(registration);
  EXPECT_EQ(std::get<Register>(*registration).protocol, 0U);
}

TEST(Codec, SkipsUnknownFields) {
  const std::string known = encode(Assignment{3, 4, 5});
  // Number 15 as varint, as 8 bytes, as a string, as 4 bytes.
  const std::string unknown = bytes_of({0x78, 0x01}) + bytes_of({0x79, 1, 2, 3, 4, 5, 6, 7, 8}) +
                              bytes_of({0x7a, 2, 'h', 'i'}) + bytes_of({0x7d, 1, 2, 3, 4});
  const auto message = decode(kAssignment, unknown + known + unknown);
  ASSERT_TRUE(message);
  EXPECT_EQ(std::get<Assignment>(*message), (Assignment{3, 4, 5}));
}

TEST(Codec, BlamesThePeerForMalformedBytes) {
  const std::string text = bytes_of({0x0a, 3, 'j', 'o', 'b'});  // Field 1 as a string.
  const std::array<std::pair<std::uint8_t, std::string>, 9> cases = {{
      {kAssignment, text},               // A number that is a string.
      {kRegister, bytes_of({0x08, 1})},  // A string that is a number.
      {kRegister, text.substr(0, 4)},    // Shorter than it says.
      {kAssignment, bytes_of({0x08})},   // Ends in the midst of a field.
      {kAssignment, bytes_of({0x08, 0xff, 0xff, 0xff, 0xff, 0x1f})},  // A rank of 33 bits and more.
      {kAssignment, std::string(1, '\x18') + std::string(11, '\xff')},  // A varint without an end.
      {kAssignment, bytes_of({0x00, 0x01})},                            // Field number 0.
      {kAssignment, bytes_of({0x7b, 0x7c})},  // A group, which proto3 has not.
      {kAssignment, bytes_of({0x28, 9})},     // A stage there is not.
  }};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto message = decode(cases.at(i).first, cases.at(i).second);
    ASSERT_FALSE(message) << "case " << i;
    EXPECT_EQ(message.error().blame, Blame::kPeer);
  }
  EXPECT_FALSE(decode(0, ""));
  EXPECT_FALSE(decode(35, ""));
  EXPECT_FALSE(decode_formation(bytes_of({0x08, 1})));
}

TEST(Codec, RefusesAListThatWouldNeedMuchMoreMemoryThanItsBytes) {
  const std::string empty_slot = bytes_of({0x22, 0});
  std::string body;
  for (std::size_t i = 0; i < kMaxListLength; ++i) body += empty_slot;
  const auto most = decode(kAgentState, body);
  ASSERT_TRUE(most);
  EXPECT_EQ(std::get<AgentState>(*most).places.size(), kMaxListLength);
  EXPECT_FALSE(decode(kAgentState, body + empty_slot));
}

// Calls `f` for each list and each bounded text of a struct, nested ones included. `f` gets a
// function (value, more) that makes it larger than its bound by `more`.
template <class T, class F>
void for_each_bound(const F& f) {
  const auto of_field = [&]<class Member>(const Field<T, Member>& field) {
    const auto at = [member = field.member](T& value) -> Member& { return value.*member; };
    const auto bounds = field.bounds;
    if constexpr (requires { Fields<Member>::kList; }) {
      for_each_bound<Member>(
          [&](auto fill) { f([=](T& v, std::size_t more) { fill(at(v), more); }); });
    } else if constexpr (std::is_same_v<Member, std::string>) {
      if (bounds.text_bytes == Bounds::kAnyBytes) return;
      f([=](T& v, std::size_t more) { at(v) = std::string(bounds.text_bytes + more, 'x'); });
    } else if constexpr (requires(Member m) { m.resize(1); }) {
      f([=](T& v, std::size_t more) { at(v).resize(bounds.entries + more); });
      if constexpr (std::is_same_v<Member, std::vector<std::string>>) {
        if (bounds.text_bytes == Bounds::kAnyBytes) return;
        f([=](T& v, std::size_t more) {
          at(v).assign(bounds.entries, std::string(bounds.text_bytes, 'x'));
          at(v).back() += std::string(more, 'x');
        });
      } else if constexpr (requires { Fields<typename Member::value_type>::kList; }) {
        using Item = typename Member::value_type;
        for_each_bound<Item>([&](auto fill) {
          f([=](T& v, std::size_t more) {
            at(v).resize(1);
            fill(at(v)[0], more);
          });
        });
      }
    }
  };
  std::apply([&](const auto&... field) { (of_field(field), ...); }, Fields<T>::kList);
}

// Tries every bound of a message, and returns how many there are.
template <class T>
int keep_the_bounds_of_a_message() {
  int bounds = 0;
  for_each_bound<T>([&](const auto& fill) {
    ++bounds;
    T most;
    fill(most, 0);
    EXPECT_TRUE(is_within_bounds(most)) << bounds;
    const auto back = decode(kind_of(most), encode(most));
    EXPECT_TRUE(back && *back == Message(most)) << kind_name(kind_of(most)) << ' ' << bounds;
    T more;
    fill(more, 1);
    EXPECT_FALSE(is_within_bounds(more)) << bounds;
    EXPECT_FALSE(decode(kind_of(more), encode(more))) << kind_name(kind_of(more)) << ' ' << bounds;
  });
  return bounds;
}
template <std::size_t... kIndex>
std::vector<int> keep_all_bounds(std::index_sequence<kIndex...>) {
  return {keep_the_bounds_of_a_message<std::variant_alternative_t<kIndex, Message>>()...};
}

TEST(Codec, TakesEachListAndTextUpToItsOwnBound) {
  const auto bounds = keep_all_bounds(std::make_index_sequence<std::variant_size_v<Message>>());
  EXPECT_EQ(bounds[kAssignment - 1], 1);  // The ranks that its cause awaits.
  EXPECT_EQ(bounds[kGet - 1], 2);
  EXPECT_EQ(bounds[kPlaces - 1], 1);
  EXPECT_EQ(bounds[kHeartbeat - 1], 0);
}

TEST(Codec, TakesEachListOfTheFormationUpToItsOwnBound) {
  int bounds = 0;
  for_each_bound<Formation>([&](const auto& fill) {
    ++bounds;
    Formation most;
    fill(most, 0);
    const auto back = decode_formation(encode(most));
    EXPECT_TRUE(back && *back == most) << bounds;
    Formation more;
    fill(more, 1);
    EXPECT_DEATH((void)encode(more), "is_within") << bounds;
  });
  EXPECT_EQ(bounds, 6);
}

TEST(Codec, BoundsKeysAndValues) {
  const std::string key(kMaxKeyBytes, 'k');
  const std::string value(kMaxValueBytes, 'v');
  const auto takes = [](const Message& message) {
    const auto back = decode(kind_of(message), encode(message));
    return back && *back == message;
  };
  EXPECT_TRUE(takes(Put{kMost, key, value}));
  EXPECT_FALSE(takes(Put{1, key + "k", value}));
  EXPECT_FALSE(takes(Put{1, key, value + "v"}));
  EXPECT_TRUE(takes(Got{kMost, true, key, value}));
  EXPECT_FALSE(takes(Got{1, true, key + "k", value}));
  EXPECT_FALSE(takes(Got{1, true, key, value + "v"}));
  EXPECT_TRUE(takes(Get{kMost, std::vector(kMaxKeys, key)}));
  EXPECT_FALSE(takes(Get{1, std::vector(kMaxKeys + 1, key)}));
  EXPECT_FALSE(takes(Get{1, {key + "k"}}));
  EXPECT_LE(encode(Got{kMost, true, key, value}).size(), kMaxBodyBytes);
}

// The library may import functions for memory, exceptions and asserts, and none of the operating
// system.
TEST(Wire, KnowsNothingOfTheOperatingSystem) {
#ifdef HOLDFAST_SANITIZED
  GTEST_SKIP() << "a sanitizer adds symbols of its own";
#endif
  const std::string command = std::string(HF_NM) + " -uC --no-weak " + HF_WIRE_LIBRARY + " 2>&1";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  ASSERT_NE(pipe, nullptr);
  std::array<char, 4096> line{};
  int symbols = 0;
  while (std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
    std::string name = line.data();
    const auto at = name.find(" U ");
    if (at == std::string::npos) continue;
    name = name.substr(at + 3);
    name.pop_back();
    ++symbols;
    bool allowed = false;
    for (const std::string prefix :
         {"holdfast::", "std::", "operator ", "__cxa_", "__gxx_", "_Unwind_", "typeinfo", "vtable",
          "mem", "__mem", "strlen", "__assert_fail", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}) {
      allowed = allowed || name.starts_with(prefix);
    }
    for (const std::string banned :
         {"std::chrono", "std::thread", "std::basic_filebuf", "std::cout"}) {
      allowed = allowed && !name.starts_with(banned);
    }
    EXPECT_TRUE(allowed) << name;
  }
  EXPECT_GT(symbols, 5);
}

}  // namespace
}  // namespace holdfast::wire
