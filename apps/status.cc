// `holdfast status`.
#include "apps/commands.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <variant>
#include <vector>

#include "apps/ask.h"
#include "base/text.h"

namespace holdfast::apps {
namespace {

using Json = nlohmann::json;
constexpr auto kReplace = Json::error_handler_t::replace;

std::string words(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return "-";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::string number(const Json& json, const char* key, const char* format) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), format, found->get<double>());
  return text;
}

// Whether some rank has a value other than 0 under this key. If not, the table omits the column: a
// program that does not train makes no steps, or steps without a loss. A loss that is no number
// comes as null, which counts as a value.
bool is_told(const Json& ranks, const char* key) {
  return std::any_of(ranks.begin(), ranks.end(), [&](const Json& rank) {
    const auto found = rank.find(key);
    return found != rank.end() && *found != 0;
  });
}

void print_ranks(const Json& ranks) {
  const bool steps = is_told(ranks, "version");
  const bool losses = is_told(ranks, "loss");
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
    print_row({words(rank, "rank"), words(rank, "node_id"), words(rank, "pid"), words(rank, "host"),
               words(rank, "version"), number(rank, "step_age_s", "%.1f s ago"),
               number(rank, "loss", "%.6g"), words(rank, "state")});
  }
}

// Prints "spares on host1: 2 ready, 1 starting"; for spares of one place each, "ready for 0, 1".
void print_spares(const Json& spares) {
  std::map<std::string, std::map<std::string, std::pair<int, std::string>>> hosts;
  for (const auto& spare : spares) {
    auto& [count, places] = hosts[words(spare, "host")][words(spare, "state")];
    ++count;
    const bool is_bound = spare.contains("node_id") && !spare["node_id"].is_null();
    if (is_bound) places += cat(places.empty() ? " for " : ", ", words(spare, "node_id"));
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
    const std::string verdict = words(one, "verdict");
    const std::string sentence = verdict == "equal" ? "" : ": " + words(one, "sentence");
    if (verdict == "skipped") {
      std::printf("worker %s not audited%s\n", words(one, "node_id").c_str(), sentence.c_str());
      continue;
    }
    std::printf("worker %s rehearsed at step %s: %s%s\n", words(one, "node_id").c_str(),
                words(one, "version").c_str(), verdict.c_str(), sentence.c_str());
  }
}

void print(const Json& json) {
  const auto ranks = json.value("ranks", Json::array());
  const auto step = is_told(ranks, "version") ? ", step " + words(json, "version") : "";
  std::printf(
      "job %s%s: %s%s, generation %s, %s, %s\n", words(json, "job").c_str(),
      json.value("tls", false) ? " under TLS" : "", words(json, "state").c_str(), step.c_str(),
      words(json, "generation").c_str(), counted(json.value("world_size", 0), "worker").c_str(),
      json.value("recoveries", 0) == 1 ? "1 recovery"
                                       : cat(json.value("recoveries", 0), " recoveries").c_str());
  const std::string cause = words(json, "cause");
  if (cause != "-" && !cause.empty()) std::printf("newest formation because: %s\n", cause.c_str());
  print_ranks(ranks);
  print_spares(json.value("spares", Json::array()));
  print_rehearsals(json.value("rehearsals", Json::array()));
  for (const auto& one : json.value("holds_up", Json::array())) {
    std::printf("%s\n", words(one, "sentence").c_str());
  }
  for (const auto& remark : json.value("remarks", Json::array())) {
    std::printf("%s\n", remark.is_string() ? remark.get<std::string>().c_str() : "");
  }
  for (const auto& one : json.value("without_place", Json::array())) {
    std::printf("worker '%s' (process %s on %s) %s: %s\n", words(one, "node_id").c_str(),
                words(one, "pid").c_str(), words(one, "host").c_str(), words(one, "state").c_str(),
                words(one, "why").c_str());
  }
  for (const auto& report : json.value("recovery_reports", Json::array())) {
    std::printf("recovery %s: %s; went on after step %s as generation %s; first step after %s ms\n",
                words(report, "recovery").c_str(), words(report, "cause").c_str(),
                words(report, "version").c_str(), words(report, "generation").c_str(),
                number(report, "first_step_ms", "%.1f").c_str());
  }
}

}  // namespace

Result<std::string> query_status(const runtime::FoundJob& job, Duration timeout) {
  auto answer = ask_scheduler(job, wire::StatusQuery{}, timeout);
  if (!answer) return answer.error();
  auto* reply = std::get_if<wire::StatusReply>(&*answer);
  if (reply == nullptr) return Error{Blame::kWorld, "the scheduler's answer is no status"};
  return std::move(reply->json);
}

int status(const std::string& job, bool json) {
  const auto chosen = choose_job(job);
  // With --json the complaint is JSON, too, so that a program can read it.
  const auto complain = [&](const std::string& text, int code) {
    std::fprintf(stderr, "holdfast: %s\n", text.c_str());
    const Json said = {{"error", text}, {"jobs", chosen.names}};
    if (json) std::printf("%s\n", said.dump(-1, ' ', false, kReplace).c_str());
    return code;
  };
  if (!chosen.job) return complain(chosen.why, chosen.code);
  const auto answer = query_status(*chosen.job, std::chrono::seconds(5));
  if (!answer) return complain(answer.error().what, 1);
  if (json) {
    std::printf("%s\n", answer->c_str());
    return 0;
  }
  const auto parsed = Json::parse(*answer, nullptr, false);
  if (!parsed.is_object()) return complain("the scheduler's answer is no status", 1);
  print(parsed);
  return 0;
}

}  // namespace holdfast::apps
