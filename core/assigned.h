// An assignment of the scheduler, as the member machine passes it to the trainer machine.
#pragma once

#include <memory>

#include "core/address_book.h"
#include "wire/messages.h"

namespace holdfast {

struct Assigned {
  wire::Assignment part;
  // The first on this connection. What this rank sent on older connections may be lost.
  bool is_first = false;
  // Empty: all ranks share one memory. Null: not known yet.
  std::shared_ptr<const AddressBook> peers;
};

}  // namespace holdfast
