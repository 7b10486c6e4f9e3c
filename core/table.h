// The states of a machine as a table {state × event}: what may follow what.
//
// A machine enters a state through its table only. So the diagrams of docs/protocol/states.md,
// which are made from the tables, are true. An event that is not listed for a state leaves it as it
// is.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <variant>

namespace holdfast {

// The index of `E` among the alternatives of the variant `Event`.
template <class Event, class E, std::size_t I = 0>
constexpr std::size_t event_index() {
  static_assert(I < std::variant_size_v<Event>, "no such event");
  if constexpr (std::is_same_v<std::variant_alternative_t<I, Event>, E>) {
    return I;
  } else {
    return event_index<Event, E, I + 1>();
  }
}

template <class State>
struct Transition {
  State from;
  std::size_t event;
  State to;
  const char* remark = "";  // When or why; only for readers of the table.
};

template <class State>
constexpr bool is_listed(std::span<const Transition<State>> table, State from, std::size_t event,
                         State to) {
  return std::any_of(table.begin(), table.end(), [&](const Transition<State>& row) {
    return row.from == from && row.event == event && row.to == to;
  });
}

}  // namespace holdfast
