// The address book of the job: where all ranks are, and which agents were told of it (P54).
#pragma once

#include "core/address_book.h"
#include "core/controller/job.h"

namespace holdfast::controller {

class Addresses {
 public:
  explicit Addresses(Job& job) : job_(job) {}

  // As all ranks are now. Before any rank hears the name of a book, its agent was told of the book.
  void refresh();
  [[nodiscard]] std::uint64_t name() const { return book_.name(); }  // 0: there is none.
  void tell(Link link);                                              // All of it.

 private:
  [[nodiscard]] std::vector<PeerPlace> peer_places() const;

  Job& job_;
  AddressBook book_;  // Which the agents were told of last.
};

}  // namespace holdfast::controller
