// The command line of msrun, which is also that of `holdfast run`.
#include "apps/commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/python/launcher.h"
#include "apps/reference_options.h"
#include "apps/timeline.h"
#include "base/number.h"
#include "base/result.h"
#include "base/text.h"
#include "config/settings.h"
#include "config/without_effect.h"
#include "runtime/agent/agent.h"

namespace holdfast::apps {
namespace {

// The values of the command line's options.
struct LaunchArguments {
  runtime::AgentOptions agent;
  ReferenceOptions reference;
  std::string join = "False";
  std::string spare_host = "False";
  std::string oversubscribe = "False";
  std::string spares = "0";
  bool strict_rehearsals = false;
  std::string hang_timeout;
  bool allow_inject = false;
  std::string snapshot;
  std::string snapshot_every;
  std::string snapshot_keep;
  std::string resume;
  std::string grace;
  std::string forked = "none";
  int node_rank = -1;
  std::string local_worker_num;  // Empty: all.
};

Result<bool> truth(const char* option, const std::string& text) {
  for (const char* yes : {"True", "true", "1"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"False", "false", "0"}) {
    if (text == no) return false;
  }
  return Error{Blame::kUser, cat(option, " is '", text, "'; allowed is True or False")};
}

constexpr std::int32_t kMostSpares = 1000;

// Returns nothing if the text is no valid number of spares.
std::optional<std::int32_t> number_of_spares(const std::string& text) {
  std::int32_t number = 0;
  const bool whole = read_number(text, number);
  return whole && number >= 0 && number <= kMostSpares ? std::optional(number) : std::nullopt;
}

// Whether the option exists in torchrun and not in msrun. torchrun takes "_" for "-".
bool is_of_torchrun(std::string option) {
  std::replace(option.begin(), option.end(), '_', '-');
  for (const char* name :
       {"--nproc-per-node", "--nnodes", "--node-rank", "--max-restarts", "--log-dir", "--role",
        "--master-addr", "--master-port", "--standalone", "--module", "-m", "--no-python",
        "--redirects", "-r", "--tee", "-t", "--local-ranks-filter", "--shutdown-timeout"}) {
    if (option == name) return true;
  }
  return option.starts_with("--rdzv-");
}

Error unknown(const std::string& word) {
  const std::string option = word.substr(0, word.find('='));
  return {Blame::kUser,
          cat("unknown option ", option, " (--help lists all)",
              is_of_torchrun(option)
                  ? cat(": it is one of torchrun's, which `holdfast run` of the Python package "
                        "takes: python3 -m holdfast run ",
                        word, " ...")
                  : "")};
}

const std::vector<std::string> kForked = {"none", "all", "first"};
constexpr const char* kExitCodes =
    "Exit codes: 0 all workers ended well (with --join False: all were started); 2 the command "
    "line\n"
    "or a setting is wrong, or the port is taken, and nothing was started; 127 the program can "
    "not\n"
    "be started; 128 + n interrupted by signal n; else that of the worker that failed (1: none "
    "did,\n"
    "the job failed as a whole).";

void add_snapshot_options(CLI::App& app, LaunchArguments& arguments) {
  app.add_option("--snapshot", arguments.snapshot,
                 "A folder of this job, the same on all hosts, for snapshots of the whole job "
                 "(docs/snapshots.md)");
  app.add_option("--snapshot_every", arguments.snapshot_every,
                 "How often: 30s, 5min, 2h; or a number of steps (5min, and the first after "
                 "30s)");
  app.add_option("--snapshot_keep", arguments.snapshot_keep,
                 "How many snapshots are kept (2, if not given)");
  app.add_option("--grace", arguments.grace,
                 "How many seconds the job has from SIGTERM (or SIGUSR1) to its end, with a last "
                 "snapshot (25, if not given)")
      ->check(CLI::Range(1.0, 31536000.0));
  app.add_option("--resume", arguments.resume,
                 "Begin with the newest snapshot of this folder; auto: of --snapshot, if it has "
                 "any");
}

void add_launch_options(CLI::App& app, LaunchArguments& arguments) {
  auto& agent = arguments.agent;
  // If an option is given twice, the last counts: so a caller can append to a script's options.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  agent.worker_num = 8;
  app.add_option("--worker_num", agent.worker_num, "Workers of the whole job (10000 at most)")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--local_worker_num", arguments.local_worker_num,
                 "Workers that this msrun starts; all of them if not given. 4,2: 4 where "
                 "--node_rank is 0, and 2 where it is 1");
  app.add_option("--server_num", agent.server_num,
                 "Parameter servers of the whole job, shared out among its hosts "
                 "(docs/parameter-server.md)")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--master_addr", agent.master_addr, "Address of the scheduler's host")
      ->capture_default_str();
  agent.master_port = 8118;
  app.add_option("--master_port", agent.master_port, "The scheduler's port")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  app.add_option("--node_rank", arguments.node_rank,
                 "The number of this msrun, where several start one job; 0 runs the scheduler")
      ->check(CLI::Range(-1, 9999));  // -1: not given.
  app.add_option("--log_dir", agent.log_dir,
                 "Folder for scheduler.log, worker_<rank>.log, spare_<n>.log, "
                 "rehearsal_<rank>.log, stack_<rank>.log, recoveries.jsonl; one "
                 "job's at a time")
      ->capture_default_str();
  app.add_option("--join", arguments.join,
                 "True: stay until the job has ended; False: run in the background")
      ->capture_default_str();
  app.add_option("--max_restarts", agent.max_restarts,
                 "Restarts of one worker without a step made in between, before the job fails")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  app.add_option("--spares", arguments.spares,
                 "Processes that wait, ready, to take the place of one that fails: a number of "
                 "them for any place, or all: one for each")
      ->capture_default_str();
  app.add_flag("--strict_rehearsals", arguments.strict_rehearsals,
               "A rehearsal that finds other bits than its rank ends the job (docs/operating.md)");
  app.add_option("--hang_timeout", arguments.hang_timeout,
                 "How many seconds the others may wait for a worker that lives before it is "
                 "replaced; 0: it is only named (docs/operating.md)")
      ->check(CLI::Range(0.0, 31536000.0));
  app.add_flag("--allow_inject", arguments.allow_inject,
               "`holdfast inject` may have faults happen to this job (docs/drills.md)");
  add_snapshot_options(app, arguments);
  app.add_option("--spare_host", arguments.spare_host,
                 "True: this host has no workers until another host is lost; --local_worker_num "
                 "processes wait, ready, for its places")
      ->capture_default_str();
  app.add_option("--oversubscribe", arguments.oversubscribe,
                 "True: this host takes the places of a lost one besides its own, if no spare host "
                 "does")
      ->capture_default_str();
  app.add_flag("--continue", agent.continues,
               "Go on with a job whose launcher has died on this host, from what its processes "
               "have left there; HOLDFAST_JOB says which one, if there are several");
  app.add_flag("--several", agent.several)->group("");  // Set by Python's `holdfast run`.
  add_reference_options(app, arguments.reference);
  app.add_flag("--usr1_ends", agent.usr1_ends)->group("");      // Likewise,
  app.add_flag("--usr2_ends", agent.usr2_ends)->group("");      // by its --signals-to-handle.
  app.add_flag("--as_torchrun", agent.as_torchrun)->group("");  // Set by Python's `holdfast run`.
  // Set by Python's msrun, which knows whether the program imports MindSpore.
  app.add_option("--forked", arguments.forked)->group("")->check(CLI::IsMember(kForked));
  app.prefix_command();
  app.footer(kExitCodes);
}

// Processes of a job may have other working folders than its agent.
std::string absolute(const std::string& path) {
  std::error_code error;
  return path.empty() ? path : std::filesystem::absolute(path, error).lexically_normal().string();
}

Forked forked(const std::string& word) {
  return word == "all" ? Forked::kAll : word == "first" ? Forked::kFirst : Forked::kNone;
}

// Reads "4,2": how many workers each host starts. A single number is for every host.
Result<std::vector<std::int32_t>> sizes_in(const std::string& text) {
  std::vector<std::int32_t> sizes;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    std::int32_t size = 0;
    const bool whole = read_number(std::string_view(text).substr(from, end - from), size);
    if (!whole || size < 1 || size > config::kMostWorkers) {
      return Error{Blame::kUser,
                   cat("--local_worker_num is '", text, "'; allowed is a whole number from 1 to ",
                       config::kMostWorkers, ", or one for each host: 4,2")};
    }
    sizes.push_back(size);
    from = end + 1;
  }
  return sizes;
}

// Sets which ranks this host starts.
Status place(runtime::AgentOptions& agent, const LaunchArguments& arguments) {
  const auto wrong = [](std::string what) { return Error{Blame::kUser, std::move(what)}; };
  const std::string text =
      arguments.local_worker_num.empty() ? cat(agent.worker_num) : arguments.local_worker_num;
  const auto sizes = sizes_in(text);
  if (!sizes) return sizes.error();
  const std::int32_t each = sizes->front();
  const bool is_list = sizes->size() > 1;
  const auto all = std::accumulate(sizes->begin(), sizes->end(), std::int64_t{0});
  if (is_list && all != agent.worker_num) {
    return wrong(cat("--local_worker_num=", text, " are ", all, " workers, but --worker_num is ",
                     agent.worker_num));
  }
  if (each > agent.worker_num) {
    return wrong(cat("--local_worker_num=", text, " is more than --worker_num=", agent.worker_num));
  }
  if (each < agent.worker_num && arguments.node_rank < 0) {
    return wrong(
        "--local_worker_num is less than --worker_num, so several msruns start this job: say which "
        "of them this is with --node_rank (0 runs the scheduler)");
  }
  agent.node_rank = std::max(arguments.node_rank, 0);
  const std::int32_t hosts =
      is_list ? static_cast<std::int32_t>(sizes->size()) : (agent.worker_num + each - 1) / each;
  const std::int32_t rank = agent.node_rank;
  if (agent.spare_host) {  // Large enough to take the places of the largest host.
    agent.local_worker_num = *std::max_element(sizes->begin(), sizes->end());
    agent.local_server_num = (agent.server_num + hosts - 1) / hosts;
    if (rank >= hosts) return {};
    return wrong(cat("--spare_host=True with --node_rank=", rank,
                     ": that number is of a host with workers; give a spare host one from ", hosts,
                     " on"));
  }
  const bool is_beyond =
      is_list ? rank >= hosts : (std::int64_t{rank} + 1) * each > agent.worker_num;
  if (is_beyond) {
    return wrong(cat("--node_rank=", rank, " with --local_worker_num=", text,
                     " goes beyond --worker_num=", agent.worker_num));
  }
  const auto mine = is_list ? sizes->begin() + rank : sizes->begin();
  agent.local_worker_num = *mine;
  agent.first_server = agent.server_num * rank / hosts;
  agent.local_server_num = agent.server_num * (rank + 1) / hosts - agent.first_server;
  agent.first_rank = is_list ? std::accumulate(sizes->begin(), mine, 0) : rank * each;
  return {};
}

// Makes the agent's options of the parsed arguments. Error: what is wrong with them.
Result<runtime::AgentOptions> finish(LaunchArguments arguments, std::vector<std::string> program) {
  auto& agent = arguments.agent;
  const auto wrong = [](std::string what) { return Error{Blame::kUser, std::move(what)}; };
  agent.program = std::move(program);
  std::error_code none;
  agent.server = {std::filesystem::read_symlink("/proc/self/exe", none).parent_path() /
                  "holdfast-server"};
  agent.launcher = std::make_shared<PythonLauncher>(forked(arguments.forked));
  agent.at_end = draw_recoveries;
  if (!agent.program.empty() && agent.program.front().starts_with('-')) {
    return unknown(agent.program.front());
  }
  if (agent.program.empty()) return wrong("no program to run is given");
  const auto join = truth("--join", arguments.join);
  if (!join) return join.error();
  agent.join = *join;
  const auto spare_host = truth("--spare_host", arguments.spare_host);
  if (!spare_host) return spare_host.error();
  agent.spare_host = *spare_host;
  const auto oversubscribe = truth("--oversubscribe", arguments.oversubscribe);
  if (!oversubscribe) return oversubscribe.error();
  agent.oversubscribe = *oversubscribe;
  const auto spares = number_of_spares(arguments.spares);
  agent.bound_spares = arguments.spares == "all";
  if (!spares && !agent.bound_spares) {
    return wrong(cat("--spares is '", arguments.spares, "'; allowed is a whole number from 0 to ",
                     kMostSpares, ", or all: one for each worker"));
  }
  agent.spares = spares.value_or(0);
  if (auto placed = place(agent, arguments); !placed) return placed.error();
  agent.runs_scheduler = agent.node_rank == 0;
  std::string& address = agent.master_addr;  // IPv6 addresses may be in brackets: [::1].
  if (address.starts_with('[') && address.ends_with(']')) {
    address = address.substr(1, address.size() - 2);
  }
  return std::move(agent);
}

bool is_about_servers(std::string_view variable) {
  constexpr std::string_view kName = "MS_SERVER_NUM=";
  return variable.starts_with(kName) && variable != "MS_SERVER_NUM=0" && variable != kName;
}

// The name of the first option with an empty value (`--log_dir=$UNSET`), which would take the next
// option for its value; empty if there is none.
std::string first_empty(const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size() && words[i].starts_with('-') && words[i] != "--"; ++i) {
    if (words[i].ends_with('=')) return words[i].substr(0, words[i].size() - 1);
    if (words[i].find('=') == std::string::npos) ++i;  // Its value is the next word.
  }
  return {};
}

// Parses the options, and returns the program and its arguments: all words from the first one that
// is no option. A "--" before the program does not belong to it; one after it does.
std::vector<std::string> parse(CLI::App& app, const std::vector<std::string>& words) {
  const auto parse_part = [&](auto from, auto to) {
    std::vector<std::string> part(from, to);
    std::reverse(part.begin(), part.end());  // CLI11 wants the words in reverse order.
    app.parse(part);
    return app.remaining();
  };
  const auto mark = std::find(words.begin(), words.end(), "--");
  if (mark != words.end() && parse_part(words.begin(), mark).empty()) {
    return {mark + 1, words.end()};
  }
  return parse_part(words.begin(), words.end());
}

// Returns the words with "_" in the names of the options, as they are here. As with torchrun, "-"
// may be written in its place.
std::vector<std::string> spelled_as(const CLI::App& app, std::vector<std::string> words) {
  for (std::size_t i = 0; i < words.size() && words[i].starts_with("--"); ++i) {
    const bool has_value = words[i].find('=') != std::string::npos;
    std::string name = words[i].substr(0, words[i].find('='));
    std::replace(name.begin() + 2, name.end(), '-', '_');
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) break;  // It is not known, or the program begins here.
    words[i].replace(0, name.size(), name);
    if (!has_value && option->get_items_expected_min() > 0) ++i;
  }
  return words;
}

}  // namespace

int launch(const std::string& name, int argc, const char* const* argv,
           const char* const* environment) {
  CLI::App app(
      "Starts the scheduler and the workers of a training job and replaces those that fail.\n"
      "What follows the options is the program with its arguments. A job of several hosts is\n"
      "started by one msrun on each, with HOLDFAST_TOKEN_FILE set (docs/many-hosts.md).",
      name);
  app.set_version_flag("--version", HOLDFAST_VERSION);
  LaunchArguments arguments;
  add_launch_options(app, arguments);
  const auto say = [&](const std::string& what) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), what.c_str());
  };
  const auto wrong = [&](const std::string& what) {
    say(what);
    return runtime::kExitUsage;
  };
  std::vector<std::string> program;
  const std::string empty = first_empty({argv, argv + argc});
  if (!empty.empty()) return wrong(cat(empty, "= has no value: give one, or leave it out"));
  try {
    program = parse(app, spelled_as(app, {argv, argv + argc}));
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : wrong(error.what());  // 0: --help
  }
  const ReferenceOptions reference = arguments.reference;
  const bool strict = arguments.strict_rehearsals;
  const std::string hang_timeout = arguments.hang_timeout;
  const bool allow_inject = arguments.allow_inject;
  const std::pair<const char*, std::string> about_snapshots[] = {
      {"HOLDFAST_SNAPSHOT", absolute(arguments.snapshot)},
      {"HOLDFAST_SNAPSHOT_EVERY", arguments.snapshot_every},
      {"HOLDFAST_SNAPSHOT_KEEP", arguments.snapshot_keep},
      {"HOLDFAST_GRACE", arguments.grace},
      {"HOLDFAST_RESUME", arguments.resume == "auto" ? "auto" : absolute(arguments.resume)}};
  auto options = finish(std::move(arguments), std::move(program));
  if (!options) return wrong(options.error().what);
  for (const auto& sentence : config::without_effect(environment)) say(sentence);
  for (; *environment != nullptr; ++environment) {
    options->environment.emplace_back(*environment);
    if (options->server_num == 0 && is_about_servers(*environment)) {
      say("MS_SERVER_NUM has no effect: --server_num says how many parameter servers there are "
          "(holdfast run: --servers)");
    }
  }
  if (strict) runtime::set(options->environment, "HOLDFAST_STRICT_REHEARSALS", "1");
  if (!hang_timeout.empty()) {
    runtime::set(options->environment, "HOLDFAST_HANG_TIMEOUT", hang_timeout);
  }
  if (allow_inject) runtime::set(options->environment, "HOLDFAST_ALLOW_INJECT", "1");
  for (const auto& [variable, value] : about_snapshots) {
    if (!value.empty()) runtime::set(options->environment, variable, value);
  }
  const Status applied = apply(reference, options->environment);
  if (!applied) return wrong(applied.error().what);
  return runtime::run_agent(*options);
}

}  // namespace holdfast::apps
