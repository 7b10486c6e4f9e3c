// Where the ranks of a job are that lies on several hosts, and what is said of it: all of it, or
// what has changed. The scheduler makes a book and tells the agents; each agent leaves it to the
// workers of its host. A book has a name that depends on all it says: who has the one of that name
// has the same.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "wire/messages.h"

namespace holdfast {

// Where a rank is, for the others.
struct PeerPlace {
  std::uint32_t host = 0;    // The same number: they share memory. It means nothing else.
  std::string endpoint;      // As of wire::Register.
  std::uint32_t domain = 0;  // The same number: they fail together. It means nothing else.
  bool operator==(const PeerPlace&) const = default;
};

class AddressBook {
 public:
  AddressBook() = default;                              // All ranks share one memory: name 0.
  explicit AddressBook(std::vector<PeerPlace> places);  // By rank.

  [[nodiscard]] std::uint64_t name() const { return name_; }
  [[nodiscard]] const std::vector<PeerPlace>& places() const { return places_; }

  // For whoever has no book, or another one than `base`.
  [[nodiscard]] wire::Addresses whole() const;
  // For whoever has `base`. All of it, where little of that is left.
  [[nodiscard]] wire::Addresses since(const AddressBook& base) const;
  // The book that is meant by what was said to whoever has this one. Nothing: it changes another
  // book, or makes none that has the name which it gives.
  [[nodiscard]] std::optional<AddressBook> after(const wire::Addresses& said) const;
  // The same for whoever has none.
  [[nodiscard]] static std::shared_ptr<const AddressBook> heard(const wire::Addresses& said);

 private:
  std::vector<PeerPlace> places_;
  std::uint64_t name_ = 0;
};

}  // namespace holdfast
