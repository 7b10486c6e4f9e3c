// The address book of the job: where all ranks are, and which agents were told of it (P54).
#pragma once

#include "core/address_book.h"
#include "core/controller/job.h"

namespace holdfast::controller {

class Addresses {
 public:
  explicit Addresses(Job& job) : job_(job) {}

  // Makes the book of where all ranks are now, and sends the changes to the agents. Called before
  // each assignment, so an agent gets a book before its ranks hear the book's name.
  void refresh();
  // The book's name; 0: all ranks share one memory.
  [[nodiscard]] std::uint64_t name() const { return book_.name(); }
  void tell(Link link);  // Sends the whole book.

 private:
  [[nodiscard]] std::vector<PeerPlace> peer_places() const;

  Job& job_;
  AddressBook book_;  // The book that the agents were told of last.
};

}  // namespace holdfast::controller
