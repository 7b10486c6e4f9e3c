#include "core/address_book.h"

#include <gtest/gtest.h>

#include <string>

#include "base/text.h"
#include "wire/codec.h"

namespace holdfast {
namespace {

std::vector<PeerPlace> places(std::uint32_t ranks, std::uint32_t of_a_host) {
  std::vector<PeerPlace> all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint32_t host = rank / of_a_host;
    all.push_back({host, cat("10.0.", host / 256, '.', host % 256, ':', 20'000 + rank), host / 2});
  }
  return all;
}

std::size_t bytes_of(const wire::Addresses& said) {
  return wire::encode(said).size();
}

TEST(AddressBook, IsWhatWasSaidOfIt) {
  const AddressBook book(places(10, 4));
  const auto heard = AddressBook().after(book.whole());
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->places(), book.places());
  EXPECT_EQ(heard->name(), book.name());
  EXPECT_NE(book.name(), 0U);
  EXPECT_EQ(AddressBook().name(), 0U);
}

TEST(AddressBook, KeepsEveryEndpointAsItIs) {
  std::vector<PeerPlace> odd;
  for (const char* endpoint : {"", ":", ":1", "h", "h:", "h:0", "h:01", "h:+1", "h:1x", "h:65535",
                               "h:65536", "h:99999999999", "[fd00::3]:40123", "fd00::3"}) {
    odd.push_back({0, endpoint, 0});
  }
  const auto heard = AddressBook().after(AddressBook(odd).whole());
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->places(), odd);
}

TEST(AddressBook, OfWhichLittleHasChangedIsToldByThat) {
  auto now = places(10'000, 100);
  const AddressBook before(now);
  now[17].endpoint = "10.0.9.9:1";
  now[9'999].domain = 7;
  const AddressBook after(now);
  EXPECT_NE(after.name(), before.name());
  const wire::Addresses said = after.since(before);
  EXPECT_EQ(said.ranks, (std::vector<std::uint32_t>{17, 9'999}));
  EXPECT_LT(bytes_of(said), 100U);
  EXPECT_LT(bytes_of(after.whole()), 90'000U);
  const auto heard = before.after(said);
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->places(), after.places());
  EXPECT_FALSE(AddressBook().after(said)) << "it changes another";
  EXPECT_FALSE(after.after(said));
}

TEST(AddressBook, OfWhichMuchHasChangedIsToldAsAWhole) {
  const AddressBook before(places(10, 4));
  for (const AddressBook& after : {AddressBook(places(10, 2)), AddressBook(places(12, 4))}) {
    EXPECT_EQ(after.since(before), after.whole());
  }
  EXPECT_EQ(before.since(AddressBook()), before.whole());
}

TEST(AddressBook, IsNotMadeOfWhatCanNotBe) {
  const AddressBook book(places(4, 2));
  const wire::Addresses good = book.whole();
  const auto is_taken = [&](auto change) {
    wire::Addresses said = good;
    change(said);
    return AddressBook().after(said) || book.after(said);
  };
  EXPECT_TRUE(is_taken([](auto&) {}));
  EXPECT_FALSE(is_taken([](auto& m) { ++m.name; }));
  EXPECT_FALSE(is_taken([](auto& m) { ++m.ports[3]; }));
  EXPECT_FALSE(is_taken([](auto& m) { m.ports.pop_back(); }));
  EXPECT_FALSE(is_taken([](auto& m) { m.at[0] = 2; }));
  EXPECT_FALSE(is_taken([](auto& m) { m.ranks = {0, 1, 2, 3}; }));
  EXPECT_FALSE(is_taken([](auto& m) { m.addresses.clear(); }));
  const auto changes = [&](auto change) {
    change.base = book.name();
    return book.after(change).has_value();
  };
  EXPECT_FALSE(changes(good));
  wire::Addresses all = good;
  all.ranks = {0, 1, 2, 3};
  EXPECT_TRUE(changes(all));
  all.ranks[3] = 4;
  EXPECT_FALSE(changes(all));
}

}  // namespace
}  // namespace holdfast
