// docs/protocol/states.md is what the machines' tables say. With --rewrite it is written anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "core/agent/machine.h"
#include "core/controller/machine.h"
#include "core/election/machine.h"
#include "core/trainer/machine.h"
#include "sim/words.h"
#include "tests/transcripts/rewrite.h"

namespace holdfast::transcripts {
namespace {

struct Row {
  std::string from;
  std::string event;
  std::string to;
  std::string remark;
};
using Rows = std::vector<Row>;

template <class State, class NameState, class NameEvent>
Rows rows_of(std::span<const Transition<State>> table, NameState state, NameEvent event) {
  Rows rows;
  for (const auto& row : table) {
    rows.push_back({state(row.from), event(row.event), state(row.to), row.remark});
  }
  return rows;
}

Rows seat_rows() {
  Rows rows;
  for (std::size_t from = 0; from < controller::kSeatStates; ++from) {
    for (std::size_t event = 0; event < controller::kSeatEvents; ++event) {
      const auto state = static_cast<controller::SeatState>(from);
      const auto what = static_cast<controller::SeatEvent>(event);
      if (const auto next = controller::after(state, what)) {
        rows.push_back({name(state), name(what), name(*next), ""});
      }
    }
  }
  return rows;
}

Rows stage_rows() {
  return rows_of(controller::stage_transitions(), sim::name, [](std::size_t event) {
    return controller::name(static_cast<controller::StageEvent>(event));
  });
}

template <class State>
Rows machine_rows(std::span<const Transition<State>> table, std::span<const char* const> events) {
  return rows_of(
      table, [](State state) { return name(state); },
      [&](std::size_t event) { return events[event]; });
}

// Mermaid takes no blanks in the name of a state.
std::string id(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

std::string diagram(const Rows& rows) {
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::pair<std::string, std::string>, std::string> events;
  for (const auto& row : rows) {
    auto& text = events[{row.from, row.to}];
    if (text.empty()) order.emplace_back(row.from, row.to);
    if (text.find(row.event) == std::string::npos) text += (text.empty() ? "" : ", ") + row.event;
  }
  std::string text = cat("```mermaid\nstateDiagram-v2\n    [*] --> ", id(rows.front().from), "\n");
  for (const auto& edge : order) {
    text += cat("    ", id(edge.first), " --> ", id(edge.second), " : ", events[edge], "\n");
  }
  return text + "```\n";
}

std::string section(const std::string& title, const std::string& about, const Rows& rows) {
  std::string text = cat("\n## ", title, "\n\n", about, "\n\n", diagram(rows));
  text += "\n| state | event | next state | when |\n| --- | --- | --- | --- |\n";
  for (const auto& row : rows) {
    text += cat("| ", row.from, " | ", row.event, " | ", row.to, " |",
                row.remark.empty() ? "" : " " + row.remark, " |\n");
  }
  return text;
}

std::string document() {
  return cat(
      R"(# States

What may follow what: a table {state × event} and a diagram for each machine. A machine enters a
state through its table only. An event that is not listed for a state leaves it as it is.
`bin/states_test --rewrite` writes this page from the tables, and the test fails if the page says
something else. What the events carry stands in each machine's header. Why all this is right:
[recovery](recovery.md).
)",
      section("A job's stage",
              "In `core/controller`, and in the formation. Every member hears of the stage by its "
              "Assignment.",
              stage_rows()),
      section(
          "A seat",
          "In `core/controller`, one for each rank: whether a process holds it, and whether its "
          "training has ended.",
          seat_rows()),
      section("A trainer",
              "In `core/trainer`, one in each worker: what its rank does. By any event that ends "
              "the job, each state leads to `over`.\nOnly the way by the program's own end is "
              "listed.",
              machine_rows(trainer::transitions(), trainer::kEventNames)),
      section("An agent", "In `core/agent`, one on each host: it starts and replaces processes.",
              machine_rows(agent::transitions(), agent::kEventNames)),
      section("A candidate",
              "In `core/election`, with etcd, one in each scheduler: it leads, or stands by.",
              machine_rows(election::transitions(), election::kEventNames)));
}

TEST(States, AreDocumentedAsTheTablesSay) {
  const std::string made = document();
  if (rewrite) std::ofstream(HF_STATES) << made;
  std::ifstream file(HF_STATES);
  const std::string kept{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(kept, made) << "bin/states_test --rewrite writes it anew";
}

}  // namespace
}  // namespace holdfast::transcripts
