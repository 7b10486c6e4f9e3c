// Describes actions and messages of the machines in words, for transcripts and traces.
#pragma once

#include <cstdint>
#include <string>

#include "core/agent/machine.h"
#include "core/controller/machine.h"
#include "core/member/machine.h"
#include "core/trainer/machine.h"
#include "wire/messages.h"

namespace holdfast::sim {

[[nodiscard]] const char* name(wire::Stage stage);
// Generation, stage, and the roster: node#attempt.
[[nodiscard]] std::string to_words(const wire::Formation& formation);
[[nodiscard]] std::string to_words(const wire::Message& message);
[[nodiscard]] std::string to_words(const controller::Action& action);
[[nodiscard]] std::string to_words(const member::Action& action);
[[nodiscard]] std::string to_words(const trainer::Work& work);
[[nodiscard]] std::string to_words(const trainer::Action& action);
[[nodiscard]] std::string to_words(const agent::Action& action);

// A digest of the message's kind and of its numbers, as far as the protocol decides by them.
[[nodiscard]] std::uint64_t print_of(const wire::Message& message);

}  // namespace holdfast::sim
