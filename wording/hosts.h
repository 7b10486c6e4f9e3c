// Says for people what a job would lose with a host.
#pragma once

#include <cstdint>
#include <string>

namespace holdfast::wording {

// Whether another host has a copy of the private part of a rank's state.
enum class Cover : std::uint8_t {
  kNothingOwn,  // The rank has no private part.
  kHeld,        // The rank's holder has it.
  kNotHeld,     // No host has it, because the user chose so (HOLDFAST_REPLICAS=0).
  kOneHost,     // No host has it, because there is no other host now.
  // Of a job with parameter servers, which hold all that only one rank has:
  kRowsHeld,     // The rows of each server are on another server's host, too.
  kRowsNotHeld,  // They are not.
};

// One sentence. `bytes`: the size of this rank's private part.
[[nodiscard]] std::string in_words(Cover cover, std::uint64_t bytes);

}  // namespace holdfast::wording
