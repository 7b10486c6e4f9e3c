// Turns messages and the journal's record into bytes (protobuf; holdfast.proto) and back.
//
// Pure and thread-safe. Any bytes may be read. The answer is a value or Error{kPeer}, and takes at
// most a small multiple of the input's memory. Unknown fields are skipped, and absent ones are zero
// or empty. Strings need not be UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "wire/formation.h"
#include "wire/messages.h"

namespace holdfast::wire {

// The message's number on the wire: 1 for Register, 2 for Assignment, ...
std::uint8_t kind_of(const Message& message);

// "Register", "Assignment", ...; for logs and traces. "unknown" if there is no such kind.
std::string_view kind_name(std::uint8_t kind);

// Whether decode() would take all its lists and texts: none is longer than wire/fields.h says.
bool is_within_bounds(const Message& message);

std::string encode(const Message& message);
Result<Message> decode(std::uint8_t kind, std::string_view body);

// For the journal. Requires: the formation's lists are within their bounds (wire/fields.h).
std::string encode(const Formation& formation);
Result<Formation> decode_formation(std::string_view bytes);
std::string encode(const Seat& seat);
Result<Seat> decode_seat(std::string_view bytes);
std::string encode(const Remarked& remark);
Result<Remarked> decode_remark(std::string_view bytes);

}  // namespace holdfast::wire
