// What the scheduler says that this rank shall do, on its way from the member to the trainer.
#pragma once

#include <memory>

#include "core/address_book.h"
#include "wire/messages.h"

namespace holdfast {

struct Assigned {
  wire::Assignment part;
  bool is_first = false;  // On this connection: what was said on older ones may be lost.
  std::shared_ptr<const AddressBook> peers;  // Empty: all share one memory. Null: not known yet.
};

}  // namespace holdfast
