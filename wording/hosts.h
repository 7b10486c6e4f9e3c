// Says for people what a lost host would take along.
#pragma once

#include <cstdint>
#include <string>

namespace holdfast::wording {

// Where there is more than one copy of what only a rank has.
enum class Cover : std::uint8_t {
  kNothingOwn,  // It has nothing that others have not.
  kHeld,        // With its holder, on another host.
  kNotHeld,     // Nowhere, by the user's choice.
  kOneHost,     // Nowhere, since there is no other host now.
};

// A sentence. `bytes`: what only this rank has.
[[nodiscard]] std::string in_words(Cover cover, std::uint64_t bytes);

}  // namespace holdfast::wording
