// `holdfast status`.
#include "apps/commands.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "apps/ask.h"
#include "apps/json.h"
#include "base/text.h"

namespace holdfast::apps {
namespace {

// Whether some rank has a value other than 0 under this key. If not, the table omits the column: a
// program that does not train makes no steps, or steps without a loss. A loss that is no number
// comes as null, and so does the step of a successor that has not reported. `null_counts` says
// whether that is a value.
bool is_told(const Json& ranks, const char* key, bool null_counts) {
  return std::any_of(ranks.begin(), ranks.end(), [&](const Json& rank) {
    const auto found = rank.find(key);
    return found != rank.end() && (found->is_null() ? null_counts : *found != 0);
  });
}

// The state of a rank; and what a parameter server holds.
std::string state_of(const Json& rank) {
  std::string state = text_of(rank, "state", "-");
  if (text_of(rank, "role") != "server") return state;
  state = cat(state == "training" ? "serving" : state, ", server");
  if (!rank["holds"].is_object()) return state;
  std::int64_t rows = 0;
  for (const auto& table : list_of(rank["holds"], "tables")) {
    const auto its = table.is_object() ? table.find("rows") : table.end();
    if (its != table.end() && its->is_number_integer()) rows += its->get<std::int64_t>();
  }
  const auto tables = static_cast<std::int64_t>(list_of(rank["holds"], "tables").size());
  return cat(state, ": ", counted(tables, "table"), ", ", counted(rows, "row"),
             number_of(rank["holds"], "bytes", ", %.0f bytes", ""));
}

void print_ranks(const Json& ranks) {
  const bool steps = is_told(ranks, "version", false);
  const bool losses = is_told(ranks, "loss", true);
  const auto print_row = [&](const std::array<std::string, 8>& row) {
    const auto& [rank, node, process, host, step, age, loss, state] = row;
    std::printf("%5s  %-12s  %8s  %-16s  ", rank.c_str(), node.c_str(), process.c_str(),
                host.c_str());
    if (steps) std::printf("%8s  %9s  ", step.c_str(), age.c_str());
    if (losses) std::printf("%10s  ", loss.c_str());
    std::printf("%s\n", state.c_str());
  };
  if (!ranks.empty())
    print_row({"rank", "node", "process", "host", "step", "made", "loss", "state"});
  for (const auto& rank : ranks) {
    print_row({text_of(rank, "rank", "-"), text_of(rank, "node_id", "-"), text_of(rank, "pid", "-"),
               text_of(rank, "host", "-"), text_of(rank, "version", "-"),
               number_of(rank, "step_age_s", "%.1f s ago", "-"),
               number_of(rank, "loss", "%.6g", "-"), state_of(rank)});
  }
}

// Prints "spares on host1: 2 ready, 1 starting"; for spares of one place each, "ready for 0, 1".
void print_spares(const Json& spares) {
  std::map<std::string, std::map<std::string, std::pair<int, std::string>>> hosts;
  for (const auto& spare : spares) {
    auto& [count, places] = hosts[text_of(spare, "host", "-")][text_of(spare, "state", "-")];
    ++count;
    const bool is_bound = spare.contains("node_id") && !spare["node_id"].is_null();
    if (is_bound) places += cat(places.empty() ? " for " : ", ", text_of(spare, "node_id", "-"));
  }
  for (const auto& [host, states] : hosts) {
    std::string text;
    for (const auto& [state, which] : states) {
      text += cat(text.empty() ? "" : ", ", which.first, ' ', state, which.second);
    }
    std::printf("spares on %s: %s\n", host.c_str(), text.c_str());
  }
}

void print_rehearsals(const Json& rehearsals) {
  for (const auto& one : rehearsals) {
    const std::string verdict = text_of(one, "verdict", "-");
    const std::string sentence = verdict == "equal" ? "" : ": " + text_of(one, "sentence", "-");
    if (verdict == "skipped") {
      std::printf("worker %s not audited%s\n", text_of(one, "node_id", "-").c_str(),
                  sentence.c_str());
      continue;
    }
    std::printf("worker %s rehearsed at step %s: %s%s\n", text_of(one, "node_id", "-").c_str(),
                text_of(one, "version", "-").c_str(), verdict.c_str(), sentence.c_str());
  }
}

void print_recovery(const Json& report) {
  const std::string step =
      number_of(report, "first_step_ms", "; first step after %.1f ms", "; it came to no step");
  const bool went_on = number_of(report, "resume_ms").has_value();
  std::printf("recovery %s: %s; %s\n", text_of(report, "recovery", "-").c_str(),
              text_of(report, "cause", "-").c_str(),
              went_on ? cat("went on after step ", text_of(report, "version", "-"),
                            " as generation ", text_of(report, "generation", "-"), step)
                            .c_str()
                      : "it was not completed");
}

// "2 workers", "2 workers and 1 server".
std::string people_of(const Json& json) {
  const auto servers = json.value("servers", 0);
  return cat(counted(json.value("world_size", 0), "worker"),
             servers == 0 ? "" : cat(" and ", counted(servers, "server")));
}

void print(const Json& json) {
  const Json& ranks = list_of(json, "ranks");
  const auto step =
      is_told(ranks, "version", false) ? ", step " + text_of(json, "version", "-") : "";
  std::printf("job %s%s: %s%s, generation %s, %s, %s\n", text_of(json, "job", "-").c_str(),
              json.value("tls", false) ? " under TLS" : "", text_of(json, "state", "-").c_str(),
              step.c_str(), text_of(json, "generation", "-").c_str(), people_of(json).c_str(),
              json.value("recoveries", 0) == 1
                  ? "1 recovery"
                  : cat(json.value("recoveries", 0), " recoveries").c_str());
  const std::string cause = text_of(json, "cause", "-");
  if (cause != "-" && !cause.empty()) std::printf("newest formation because: %s\n", cause.c_str());
  print_ranks(ranks);
  print_spares(list_of(json, "spares"));
  print_rehearsals(list_of(json, "rehearsals"));
  if (const Json& snapshots = list_of(json, "snapshots"); !snapshots.empty()) {
    std::printf("newest snapshot: step %s (%s)\n", text_of(snapshots[0], "version", "-").c_str(),
                text_of(snapshots[0], "name", "-").c_str());
  }
  for (const auto& one : list_of(json, "holds_up")) {
    std::printf("%s\n", text_of(one, "sentence", "-").c_str());
  }
  for (const auto& remark : list_of(json, "remarks")) {
    std::printf("%s\n", text_of(remark, "sentence").c_str());
  }
  for (const auto& one : list_of(json, "without_place")) {
    std::printf("worker '%s' (process %s on %s) %s: %s\n", text_of(one, "node_id", "-").c_str(),
                text_of(one, "pid", "-").c_str(), text_of(one, "host", "-").c_str(),
                text_of(one, "state", "-").c_str(), text_of(one, "why", "-").c_str());
  }
  for (const auto& report : list_of(json, "recovery_reports")) print_recovery(report);
}

}  // namespace

int status(const std::string& job, bool json) {
  const auto asked = ask_job<wire::StatusReply>(job, wire::StatusQuery{});
  const auto parsed = asked.answer ? Json::parse(asked.answer->json, nullptr, false) : Json();
  if (!parsed.is_object()) {
    const std::string why = asked.answer ? "the scheduler's answer is no status" : asked.why;
    // With --json the complaint is JSON, too, so that a program can read it.
    const Json said = {{"error", why}, {"jobs", asked.chosen.names}};
    if (json)
      std::printf("%s\n", said.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    return complain(why, std::max(asked.code, 1));
  }
  if (json) {
    std::printf("%s\n", asked.answer->json.c_str());
  } else {
    print(parsed);
  }
  return 0;
}

}  // namespace holdfast::apps
