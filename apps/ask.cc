#include "apps/ask.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "io/connection.h"
#include "io/loop.h"
#include "os/errors.h"
#include "runtime/jobs/leader_file.h"
#include "runtime/jobs/membership.h"
#include "wording/reasons.h"

namespace holdfast::apps {
namespace {

// Whether the job's scheduler runs on another host, and an agent of this host knows where.
bool is_elsewhere(const runtime::FoundJob& job) {
  return job.agent && !job.master_alive && job.agent->sched_port != 0;
}

// The address of the job's scheduler, as far as this host knows it.
std::optional<std::pair<std::string, std::uint16_t>> where(const runtime::FoundJob& job) {
  if (job.scheduler_alive) return std::pair(job.scheduler->host, job.scheduler->port);
  // With etcd, a scheduler on another host may have taken over.
  const auto told = runtime::read_leader_file(job.directory);
  if (told) return std::pair(told->host, told->port);
  if (is_elsewhere(job)) return std::pair(job.agent->host, job.agent->sched_port);
  if (job.scheduler) return std::pair(job.scheduler->host, job.scheduler->port);
  return std::nullopt;
}

// Of a job of which nothing lives here. If its scheduler was on another host, that one may go on.
std::string last_words(const runtime::FoundJob& job) {
  const bool was_elsewhere = !job.scheduler && !job.dead_agents.empty();
  const std::string logs = job.dead_agents.empty() ? "" : job.dead_agents.back().log_dir;
  return cat("job ", job.name, was_elsewhere ? " is dead here" : " is dead",
             ": none of its processes lives on this host",
             was_elsewhere ? ", and its scheduler was on another one" : "",
             ". What it has left is in ", job.directory,
             logs.empty()
                 ? ": `holdfast clean` removes it"
                 : cat(": the command that started it, with --continue, goes on with that; "
                       "`holdfast clean` removes it; its logs are in ",
                       logs));
}

}  // namespace

ChosenJob choose_job(const std::string& name) {
  ChosenJob chosen;
  std::vector<runtime::FoundJob> running;
  std::vector<runtime::FoundJob> dead;
  auto on_host = runtime::jobs_on_this_host();
  for (auto& found : on_host.jobs) {
    const bool is_dead =
        !found.alive() && found.orphans.empty() && !runtime::read_leader_file(found.directory);
    if (is_dead && (name.empty() || found.name == name)) {
      dead.push_back(std::move(found));
      continue;
    }
    const bool is_meant = name.empty() ? found.agent_alive || found.scheduler_alive  //
                                       : found.name == name;
    if (is_meant) running.push_back(std::move(found));
  }
  if (running.empty()) {
    chosen.why = name.empty()   ? "no job of this user runs on this host"
                 : dead.empty() ? "no job named '" + name + "' is on this host"
                                : last_words(dead.front());
    for (const auto& one : dead) {
      if (name.empty()) chosen.why += ";\n  " + last_words(one);
    }
    if (dead.size() == 1) chosen.dead = std::move(dead.front());
    for (const auto& why : on_host.left_alone) chosen.why += ";\n  but " + why;
    chosen.code = 1;
    return chosen;
  }
  for (const auto& why : on_host.left_alone) std::fprintf(stderr, "holdfast: %s\n", why.c_str());
  for (const auto& found : running) chosen.names.push_back(found.name);
  auto& first = running.front();
  if (running.size() > 1) {
    chosen.why = "several jobs run here; name one with --job:";
    for (const auto& one : running) {
      chosen.why += "\n  " + one.name;
      if (one.agent) chosen.why += "   logs in " + one.agent->log_dir;
    }
    chosen.code = 2;
  } else if (!first.scheduler_alive && !is_elsewhere(first) &&
             !runtime::read_leader_file(first.directory)) {
    chosen.why = "the scheduler of job " + first.name +
                 " does not run at the moment (it starts, or is being replaced)";
    chosen.code = 1;
  } else {
    chosen.job = std::move(first);
  }
  return chosen;
}

Result<config::Settings> settings_of(const runtime::FoundJob& job) {
  auto settings = config::from_environment(environ);
  if (!settings) return settings;
  settings->job = job.name;
  if (settings->token_file.empty() && job.agent) settings->token_file = job.agent->token_file;
  return settings;
}

Result<wire::Message> ask_scheduler(const runtime::FoundJob& job, const wire::Message& question,
                                    Duration timeout) try {
  const auto settings = settings_of(job);
  if (!settings) return settings.error();
  auto membership = runtime::membership_of_observer(*settings, job.directory);
  if (!membership) return membership.error();
  const auto at = where(job);
  if (!at) return Error{Blame::kWorld, cat("no scheduler of job ", job.name, " is known here")};
  const auto& [host, port] = *at;
  Result<wire::Message> answer =
      Error{Blame::kWorld,
            cat("the scheduler at ", host_and_port(host, port), " did not answer in time")};
  std::shared_ptr<io::Connection> connection;
  io::Loop loop;
  const auto finish = [&](Result<wire::Message> result) {
    answer = std::move(result);
    loop.stop();
  };
  loop.after(timeout, [&] { loop.stop(); });
  const auto connected = [&](Result<std::shared_ptr<io::Connection>> made) {
    if (!made) return finish(made.error());
    connection = *made;
    connection->start({.on_message =
                           [&](wire::Message message) {
                             if (!std::holds_alternative<wire::Heartbeat>(message)) {
                               finish(std::move(message));
                             }
                           },
                       .on_closed = [&](Error why) { finish(std::move(why)); }});
    connection->send(question);
  };
  io::connect(loop, host, port, *std::move(membership), timeout, connected);
  loop.run();
  connection.reset();
  return answer;
} catch (const std::system_error& error) {  // For example: no descriptor is free.
  return os::no_task("can not ask the scheduler", error.code().value());
}

int complain(const std::string& text, int code, const char* command) {
  std::fprintf(stderr, "%s: %s\n", command, text.c_str());
  return code;
}

int tell(const wire::Reason& reason, wire::Reason::Kind done) {
  const std::string words = wording::in_words(reason);
  if (reason.kind != done) return complain(words, 1);
  std::printf("%s\n", words.c_str());
  return 0;
}

}  // namespace holdfast::apps
