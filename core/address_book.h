// Where the ranks of a job with several hosts are, and the messages that say so: the whole book, or
// the changes to an older one.
//
// The scheduler makes a book and sends it to the agents. Each agent leaves it for the workers of
// its host. A book's name is a digest of its content, so books of one name are equal.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "wire/messages.h"

namespace holdfast {

// Where the other ranks find a rank.
struct PeerPlace {
  std::uint32_t host = 0;    // Ranks with the same number share memory. It has no other meaning.
  std::string endpoint;      // As in wire::Register.
  std::uint32_t domain = 0;  // Ranks with the same number fail together. It has no other meaning.
  bool operator==(const PeerPlace&) const = default;
};

class AddressBook {
 public:
  AddressBook() = default;  // An empty book, named 0: all ranks share one memory.
  explicit AddressBook(std::vector<PeerPlace> places);  // By rank.

  [[nodiscard]] std::uint64_t name() const { return name_; }
  [[nodiscard]] const std::vector<PeerPlace>& places() const { return places_; }

  // The message for a reader that has no book, or another one than since() starts from.
  [[nodiscard]] wire::Addresses whole() const;
  // The message for a reader that has `base`: the changes, or the whole book if more than half of
  // the ranks have changed.
  [[nodiscard]] wire::Addresses since(const AddressBook& base) const;
  // The book that a reader of this one has after the message `said`. nullopt: the message changes
  // another book, is malformed, or leads to a book with another name than it states.
  [[nodiscard]] std::optional<AddressBook> after(const wire::Addresses& said) const;
  // The same for a reader that has no book. Null: as nullopt there.
  [[nodiscard]] static std::shared_ptr<const AddressBook> heard(const wire::Addresses& said);

 private:
  std::vector<PeerPlace> places_;
  std::uint64_t name_ = 0;
};

}  // namespace holdfast
