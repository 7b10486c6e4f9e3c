#include "apps/web/ranks.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "apps/web/text.h"
#include "base/text.h"

namespace holdfast::apps::web {
namespace {

// The columns that every rank has, and those that are left out if no rank has a value in them: a
// program that does not train makes no steps, or steps without a loss.
struct Columns {
  bool steps = false;
  bool times = false;
  bool losses = false;
};

Columns columns_of(const Json& ranks) {
  Columns columns;
  for (const auto& rank : ranks) {
    const auto has = [&](const char* key) { return number_of(rank, key).value_or(0) != 0; };
    columns.steps = columns.steps || has("version");
    columns.times = columns.times || has("own_step_ms");
    columns.losses = columns.losses || has("loss");
  }
  return columns;
}

bool is_server(const Json& rank) {
  return text_of(rank, "role") == "server";
}

std::string state_of_rank(const Json& rank, bool holds_up) {
  std::string state = text_of(rank, "state", "-");
  if (is_server(rank)) state = cat(state == "training" ? "serving" : state, ", server");
  return holds_up ? "holds up the others" : state;
}

// The class of a rank's row.
const char* mood_of(const Json& rank, bool holds_up) {
  const std::string state = text_of(rank, "state");
  if (state.starts_with("dead") || state.starts_with("lost") || holds_up) return "bad";
  return state == "training" || state.starts_with("finish") ? "good" : "busy";
}

std::string cell(const std::string& text) {
  return cat("<td class=\"number\">", escaped(text), "</td>");
}

std::string row_of(const Json& rank, bool holds_up, const Columns& columns) {
  std::string row =
      cat("<tr class=\"", mood_of(rank, holds_up), "\">", cell(text_of(rank, "rank", "-")),
          "<td class=\"state\">", escaped(state_of_rank(rank, holds_up)), "</td><td>",
          escaped(text_of(rank, "host", "-")), "</td>", cell(text_of(rank, "pid", "-")), "<td>",
          escaped(text_of(rank, "node_id", "-")), "</td>");
  if (columns.steps) {
    const auto step = number_of(rank, "version");
    const auto age = number_of(rank, "step_age_s");
    row += cell(step ? grouped(*step) : "-") + cell(age ? duration(*age) + " ago" : "-");
  }
  if (columns.times) {
    row += cell(number_of(rank, "own_step_ms", "%.1f ms", "-")) +
           cell(number_of(rank, "between_ms", "%.1f ms", "-"));
  }
  if (columns.losses) row += cell(number_of(rank, "loss", "%.6g", "-"));
  return row + "</tr>\n";
}

std::string head_of_table(const Columns& columns) {
  return cat("<th>rank</th><th>state</th><th>host</th><th>process</th><th>worker</th>",
             columns.steps ? "<th>step</th><th>made</th>" : "",
             columns.times ? "<th>own part</th><th>between</th>" : "",
             columns.losses ? "<th>loss</th>" : "");
}

}  // namespace

std::string ranks_of(const Json& status, std::size_t most) {
  const Json& ranks = list_of(status, "ranks");
  if (ranks.empty()) return {};
  std::set<std::string> slow;
  for (const auto& one : list_of(status, "holds_up")) slow.insert(text_of(one, "rank"));
  const auto holds_up = [&](const Json& rank) { return slow.contains(text_of(rank, "rank", "-")); };
  std::map<std::string, std::int64_t> states;
  std::vector<const Json*> others;
  std::vector<const Json*> training;
  for (const auto& rank : ranks) {
    ++states[state_of_rank(rank, holds_up(rank))];
    const bool is_usual = text_of(rank, "state") == "training" && !holds_up(rank);
    (is_usual ? training : others).push_back(&rank);
  }
  std::vector<const Json*> shown = others;
  shown.insert(shown.end(), training.begin(), training.end());
  shown.resize(std::min(shown.size(), most));
  std::string counts;
  for (const auto& [state, number] : states) {
    counts += cat(counts.empty() ? "" : "; ", grouped(static_cast<double>(number)), " ", state);
  }
  const auto columns = columns_of(ranks);
  std::string rows;
  for (const auto* rank : shown) rows += row_of(*rank, holds_up(*rank), columns);
  std::string more;
  if (shown.size() < ranks.size()) {
    more = cat("<p>", grouped(static_cast<double>(ranks.size() - shown.size())),
               " more are not shown. <a href=\"./?ranks=all\">Show all</a></p>\n");
  }
  return cat("<section><h2>Ranks <small>", escaped(counts),
             "</small></h2>\n<div class=\"scroll\"><table class=\"ranks\">\n<thead><tr>",
             head_of_table(columns), "</tr></thead>\n<tbody>\n", rows, "</tbody></table></div>\n",
             more, "</section>\n");
}

}  // namespace holdfast::apps::web
