// `holdfast status`.
#include "apps/commands.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "base/text.h"
#include "io/connection.h"
#include "io/loop.h"
#include "os/errors.h"
#include "runtime/jobs/leader_file.h"
#include "runtime/jobs/membership.h"

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

// A column of the table is left out where it would say nothing of any rank: a program that does not
// train makes no steps, or steps without a loss. A loss that is no number is null, and is shown.
bool is_told(const Json& ranks, const char* key) {
  return std::any_of(ranks.begin(), ranks.end(), [&](const Json& rank) {
    const auto found = rank.find(key);
    return found != rank.end() && *found != 0;
  });
}

void print_ranks(const Json& ranks) {
  const bool steps = is_told(ranks, "version");
  const bool losses = is_told(ranks, "loss");
  const auto print_row = [&](const std::array<std::string, 7>& row) {
    const auto& [rank, node, process, host, step, loss, state] = row;
    std::printf("%5s  %-12s  %8s  %-16s  ", rank.c_str(), node.c_str(), process.c_str(),
                host.c_str());
    if (steps) std::printf("%8s  ", step.c_str());
    if (losses) std::printf("%10s  ", loss.c_str());
    std::printf("%s\n", state.c_str());
  };
  if (!ranks.empty()) print_row({"rank", "node", "process", "host", "step", "loss", "state"});
  for (const auto& rank : ranks) {
    print_row({words(rank, "rank"), words(rank, "node_id"), words(rank, "pid"), words(rank, "host"),
               words(rank, "version"), number(rank, "loss", "%.6g"), words(rank, "state")});
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

// Whether its scheduler runs on another host, and an agent here knows where.
bool is_elsewhere(const runtime::FoundJob& job) {
  return job.agent && !job.master_alive && job.agent->sched_port != 0;
}

// Where its scheduler listens, as far as is known here.
std::optional<std::pair<std::string, std::uint16_t>> where(const runtime::FoundJob& job) {
  if (job.scheduler_alive) return std::pair(job.scheduler->host, job.scheduler->port);
  // With etcd, that of another host may have taken over.
  const auto told = runtime::read_leader_file(job.directory);
  if (told) return std::pair(told->host, told->port);
  if (is_elsewhere(job)) return std::pair(job.agent->host, job.agent->sched_port);
  if (job.scheduler) return std::pair(job.scheduler->host, job.scheduler->port);
  return std::nullopt;
}

}  // namespace

Result<std::string> query_status(const runtime::FoundJob& job, Duration timeout) try {
  auto settings = config::from_environment(environ);
  if (!settings) return settings.error();
  settings->job = job.name;
  if (settings->token_file.empty() && job.agent) settings->token_file = job.agent->token_file;
  auto membership = runtime::membership_of_observer(*settings, job.directory);
  if (!membership) return membership.error();
  const auto at = where(job);
  if (!at) return Error{Blame::kWorld, cat("no scheduler of job ", job.name, " is known here")};
  const auto& [host, port] = *at;
  Result<std::string> answer =
      Error{Blame::kWorld,
            cat("the scheduler at ", host_and_port(host, port), " did not answer in time")};
  std::shared_ptr<io::Connection> connection;
  io::Loop loop;
  const auto finish = [&](Result<std::string> result) {
    answer = std::move(result);
    loop.stop();
  };
  loop.after(timeout, [&] { loop.stop(); });
  const auto connected = [&](Result<std::shared_ptr<io::Connection>> made) {
    if (!made) return finish(made.error());
    connection = *made;
    connection->start({.on_message =
                           [&](wire::Message message) {
                             auto* reply = std::get_if<wire::StatusReply>(&message);
                             if (reply != nullptr) finish(std::move(reply->json));
                           },
                       .on_closed = [&](Error why) { finish(std::move(why)); }});
    connection->send(wire::StatusQuery{});
  };
  io::connect(loop, host, port, *std::move(membership), timeout, connected);
  loop.run();
  connection.reset();
  return answer;
} catch (const std::system_error& error) {  // A descriptor that can not be had.
  return os::no_task("can not ask the scheduler", error.code().value());
}

int status(const std::string& job, bool json) {
  std::vector<std::string> names;
  // Who reads JSON finds JSON.
  const auto complain = [&](const std::string& text, int code) {
    std::fprintf(stderr, "holdfast: %s\n", text.c_str());
    const Json said = {{"error", text}, {"jobs", names}};
    if (json) std::printf("%s\n", said.dump(-1, ' ', false, kReplace).c_str());
    return code;
  };
  std::vector<runtime::FoundJob> running;
  auto on_host = runtime::jobs_on_this_host();
  for (auto& found : on_host.jobs) {
    if (job.empty() ? found.agent_alive || found.scheduler_alive : found.name == job)
      running.push_back(std::move(found));
  }
  if (running.empty()) {
    std::string text = job.empty() ? "no job of this user runs on this host"
                                   : "no job named '" + job + "' is on this host";
    for (const auto& why : on_host.left_alone) text += ";\n  but " + why;
    return complain(text, 1);
  }
  for (const auto& why : on_host.left_alone) std::fprintf(stderr, "holdfast: %s\n", why.c_str());
  for (const auto& found : running) names.push_back(found.name);
  if (running.size() > 1) {
    std::string all;
    for (const auto& one : running) {
      all += "\n  " + one.name;
      if (one.agent) all += "   logs in " + one.agent->log_dir;
    }
    return complain("several jobs run here; name one with --job:" + all, 2);
  }
  const auto& found = running.front();
  if (!found.scheduler_alive && !is_elsewhere(found) &&
      !runtime::read_leader_file(found.directory)) {
    return complain("the scheduler of job " + found.name +
                        " does not run at the moment (it starts, or is being replaced)",
                    1);
  }
  const auto answer = query_status(found, std::chrono::seconds(5));
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
