#include "core/address_book.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <map>
#include <span>
#include <string_view>
#include <tuple>

#include "base/digest.h"

namespace holdfast {
namespace {

constexpr std::uint32_t kMostPorts = 65536;
constexpr std::size_t kUsualBytes = 36;  // Typical size of one place in the digest's input.

void append(std::string& bytes, std::uint32_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

std::uint64_t name_of(const std::vector<PeerPlace>& places) {
  if (places.empty()) return 0;
  std::string bytes;
  bytes.reserve(places.size() * kUsualBytes);
  for (const PeerPlace& place : places) {
    append(bytes, place.host);
    append(bytes, place.domain);
    append(bytes, static_cast<std::uint32_t>(place.endpoint.size()));
    bytes += place.endpoint;
  }
  return std::max<std::uint64_t>(1, digest(std::as_bytes(std::span(bytes))));
}

struct Parts {  // An endpoint, split.
  std::string_view address;
  std::uint32_t port = 0;  // 0: the endpoint is an address without a port.
};

Parts split(std::string_view endpoint) {
  const auto colon = endpoint.rfind(':');
  if (colon == std::string_view::npos) return {endpoint};
  const auto digits = endpoint.substr(colon + 1);
  std::uint32_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  const bool is_port = error == std::errc{} && end == digits.data() + digits.size() && port > 0 &&
                       port < kMostPorts && !digits.starts_with('0');
  return is_port ? Parts{endpoint.substr(0, colon), port} : Parts{endpoint};
}

std::string joined(const std::string& address, std::uint32_t port) {
  if (port == 0) return address;
  std::array<char, 16> digits{};
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), port);
  std::string endpoint = address;
  endpoint += ':';
  return endpoint.append(digits.data(), written.ptr);
}

// Adds places to a message. Ranks of one host differ only in their ports, so each address is
// written once.
class Writer {
 public:
  explicit Writer(wire::Addresses& said) : said_(said) {}

  void add(const PeerPlace& place) {
    const Parts endpoint = split(place.endpoint);
    const Key key{place.host, place.domain, endpoint.address};
    if (key != key_ || numbers_.empty()) {
      key_ = key;
      const auto next = static_cast<std::uint32_t>(said_.addresses.size());
      const auto [found, is_new] = numbers_.try_emplace(key, next);
      if (is_new) {
        said_.addresses.push_back({place.host, place.domain, std::string(endpoint.address)});
      }
      number_ = found->second;
    }
    said_.at.push_back(number_);
    said_.ports.push_back(endpoint.port);
  }

 private:
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::string_view>;
  wire::Addresses& said_;
  std::map<Key, std::uint32_t> numbers_;
  Key key_;  // The key of the place added last.
  std::uint32_t number_ = 0;
};

}  // namespace

AddressBook::AddressBook(std::vector<PeerPlace> places)
    : places_(std::move(places)), name_(name_of(places_)) {}

wire::Addresses AddressBook::whole() const {
  wire::Addresses said{.name = name_};
  Writer writer(said);
  for (const PeerPlace& place : places_) writer.add(place);
  return said;
}

wire::Addresses AddressBook::since(const AddressBook& base) const {
  if (base.name_ == 0 || base.places_.size() != places_.size()) return whole();
  wire::Addresses said{.name = name_, .base = base.name_};
  Writer writer(said);
  for (std::size_t rank = 0; rank < places_.size(); ++rank) {
    if (places_[rank] == base.places_[rank]) continue;
    said.ranks.push_back(static_cast<std::uint32_t>(rank));
    writer.add(places_[rank]);
  }
  return 2 * said.ranks.size() > places_.size() ? whole() : said;
}

std::shared_ptr<const AddressBook> AddressBook::heard(const wire::Addresses& said) {
  auto book = AddressBook().after(said);
  return book ? std::make_shared<const AddressBook>(*std::move(book)) : nullptr;
}

std::optional<AddressBook> AddressBook::after(const wire::Addresses& said) const {
  const std::size_t count = said.at.size();
  const bool changes = said.base != 0;
  if (said.ports.size() != count || said.ranks.size() != (changes ? count : 0)) return {};
  if (changes && said.base != name_) return {};
  std::vector<PeerPlace> places = changes ? places_ : std::vector<PeerPlace>(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t rank = changes ? said.ranks[i] : i;
    if (rank >= places.size() || said.at[i] >= said.addresses.size()) return {};
    const wire::HostAddress& on = said.addresses[said.at[i]];
    places[rank] = {on.host, joined(on.address, said.ports[i]), on.domain};
  }
  AddressBook book(std::move(places));
  if (book.name_ != said.name) return {};
  return book;
}

}  // namespace holdfast
