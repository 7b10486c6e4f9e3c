// holdfast: looks after jobs: status, serve, explain, inject, stop, pause, resume, drain, move,
// clean, doctor, settings, run, verify, timeline, tls, table, snapshot.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

#include "apps/commands.h"
#include "apps/snapshot.h"
#include "apps/table.h"
#include "apps/timeline.h"
#include "apps/tls.h"
#include "config/settings.h"

namespace holdfast {
namespace {

constexpr const char* kCommands =
    "status, serve, explain, inject, stop, pause, resume, drain, move, clean, doctor, settings, "
    "run, verify, timeline, tls, table and snapshot";

void print_settings(bool markdown) {
  if (markdown) {
    std::cout << config::markdown();
    return;
  }
  for (const auto& row : config::table()) {
    std::cout << row.variable << " (" << config::allowed(row)
              << "; default: " << (row.default_text.empty() ? "unset" : row.default_text)
              << ")\n    " << row.help << '\n';
  }
}

// The arguments of `holdfast drain` and `holdfast move`.
struct Moving {
  std::string from;
  std::string to;
  int timeout_s = 60;
  CLI::App* drain = nullptr;
  CLI::App* move = nullptr;

  void offer(CLI::App& app, std::string& job) {
    drain = app.add_subcommand("drain", "Have other hosts take a host's ranks over, for good");
    move = app.add_subcommand("move", "Have another host take a host's ranks over");
    for (auto* one : {drain, move}) {
      one->add_option("--job", job, "Its name; needed where several run");
      one->add_option("HOST", from, "The host, as `holdfast status` names it")->required();
      one->add_option("--timeout", timeout_s, "Seconds to wait for the end of the step under way")
          ->capture_default_str()
          ->check(CLI::Range(1, 86400));
    }
    move->add_option("TO", to, "The host that shall have them; left out: any that would");
  }
  [[nodiscard]] bool is_meant() const { return drain->parsed() || move->parsed(); }
};

// The arguments of `holdfast inject`.
struct InjectOptions {
  apps::InjectArguments arguments;
  CLI::App* app = nullptr;

  void offer(CLI::App& all, std::string& job) {
    app = all.add_subcommand("inject",
                             "Have a fault happen to a rank or a host, to try a job (--help)");
    app->add_option("WHAT", arguments.kind, "kill, stop, hang, spin, slow, page, flip or cut")
        ->required();
    auto* rank = app->add_option("--rank", arguments.rank, "To which rank");
    auto* host =
        app->add_option("--host", arguments.host,
                        "kill, stop: to all processes of this host, its launcher too, at once");
    app->add_option("--job", job, "Its name; needed where several run");
    app->add_option("--at-step", arguments.at_step,
                    "Not before this step, as `holdfast status` counts; left out: the next one")
        ->check(CLI::NonNegativeNumber);
    app->add_option(
        "--phase", arguments.phase,
        "When it begins with this: compute (the usual), sum, stage (that of flip), copy, commit, "
        "update, between or recovery");
    app->add_option("--for", arguments.seconds,
                    "hang, spin: so many seconds (for ever); slow: so many in each step");
    host->excludes(rank)->excludes("--at-step")->excludes("--phase")->excludes("--for");
    app->footer("The job has to be started with --allow-inject. docs/drills.md tells of each.");
  }
};

// The arguments of `holdfast stop`.
struct Stopping {
  std::int64_t after_step = 0;
  int timeout_s = 600;
  CLI::App* app = nullptr;

  void offer(CLI::App& all, std::string& job) {
    app = all.add_subcommand("stop", "Have a job make a last snapshot, if it makes any, and end");
    app->add_option("--job", job, "Its name; needed where several run");
    app->add_option("--after-step", after_step, "Not before this step is made")
        ->check(CLI::NonNegativeNumber);
    app->add_option("--timeout", timeout_s, "Seconds to wait for the snapshot")
        ->capture_default_str()
        ->check(CLI::Range(1, 86400));
  }
};

// `holdfast pause` and `holdfast resume`.
struct Pausing {
  CLI::App* pause = nullptr;
  CLI::App* resume = nullptr;

  void offer(CLI::App& all, std::string& job) {
    pause = all.add_subcommand("pause", "Have a job keep its memory and make no further step");
    resume = all.add_subcommand("resume", "Have a paused job go on");
    for (auto* one : {pause, resume}) {
      one->add_option("--job", job, "Its name; needed where several run");
    }
  }
  [[nodiscard]] bool is_meant() const { return pause->parsed() || resume->parsed(); }
};

// `holdfast clean`, `holdfast doctor` and `holdfast settings`.
struct Housekeeping {
  bool dry_run = false;
  std::uint16_t port = 8118;
  bool markdown = false;
  CLI::App* clean = nullptr;
  CLI::App* doctor = nullptr;

  void offer(CLI::App& all) {
    clean = all.add_subcommand("clean", "Remove what dead jobs of this user have left");
    clean->add_flag("--dry-run", dry_run, "Only say what would be removed");
    doctor = all.add_subcommand(
        "doctor", "What this host has, what will not work there, and what to do about it");
    doctor->add_option("--port", port, "Where a scheduler would listen")
        ->capture_default_str()
        ->check(CLI::Range(1, 65535));
    auto* settings =
        all.add_subcommand("settings", "All environment variables that Holdfast reads");
    settings->add_flag("--markdown", markdown, "As docs/settings.md");
  }
  [[nodiscard]] int run() const {
    if (clean->parsed()) return apps::clean(dry_run);
    if (doctor->parsed()) return apps::examine_host(port, environ);
    print_settings(markdown);
    return 0;
  }
};

// The arguments of `holdfast serve`.
struct Serving {
  apps::ServeArguments arguments;
  CLI::App* app = nullptr;

  void offer(CLI::App& all) {
    app = all.add_subcommand("serve", "Serve a status page, and metrics for Prometheus");
    auto* of_job = app->add_option("--job", arguments.job, "Its name; needed where several run");
    app->add_option("--listen", arguments.listen, "HOST:PORT; port 0: any free one")
        ->capture_default_str();
    app->add_option("--status", arguments.saved,
                    "Show what this file has (last_status.json) in place of a running job")
        ->excludes(of_job);
    app->add_flag("--print-token", arguments.print_token,
                  "Only print the token that Prometheus needs, as a bearer token");
    app->footer("docs/operating.md tells how Prometheus and Grafana are set up.");
  }
};

// For --help: the commands that have a parser of their own.
void offer_own_parsers(CLI::App& app) {
  app.add_subcommand("run", "Start a job, as msrun does (run --help)");
  app.add_subcommand("verify", "Prove that a program outlives faults (verify --help)");
  app.add_subcommand("timeline",
                     "Draw what happened to a job, out of its traces (timeline --help)");
  app.add_subcommand("tls", "Make or check the certificates of a job (tls --help)");
  app.add_subcommand("table", "List, export or import saved tables (table --help)");
  app.add_subcommand("snapshot", "List, check or make snapshots of jobs (snapshot --help)");
}

// Runs one of these. nullopt: it is none of them.
std::optional<int> run_by_own_parser(int argc, char** argv) {
  const std::string_view command = argv[1];
  if (command == "run") return apps::launch("holdfast run", argc - 2, argv + 2, environ);
  if (command == "verify") return apps::verify(argc - 2, argv + 2);
  if (command == "timeline") return apps::draw_timeline(argc - 2, argv + 2);
  if (command == "tls") return apps::tls(argc - 2, argv + 2, environ);
  if (command == "table") return apps::tables(argc - 2, argv + 2);
  if (command == "snapshot") return apps::snapshots(argc - 2, argv + 2);
  return std::nullopt;
}

// A command that does not go as it was written. Returns the exit code.
int refuse(const std::string& command, const char* why) {
  if (command == "drain" || command == "move" || command == "inject") {
    std::fprintf(stderr, "holdfast: %s: %s\n", command.c_str(), why);
  } else {
    std::fprintf(stderr, "holdfast: there is no command '%s'; there are %s (--help)\n",
                 command.c_str(), kCommands);
  }
  return 2;
}

int run(int argc, char** argv) {
  CLI::App app("Looks after fault-tolerant training jobs on this host.", "holdfast");
  app.set_version_flag("--version", HOLDFAST_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done; 1 not possible (said why); 2 wrong command line. Of run: see run "
      "--help.");

  std::string job;
  bool json = false;
  auto* status = app.add_subcommand("status", "How a running job is");
  status->add_option("--job", job, "Its name; needed where several run");
  status->add_flag("--json", json, "As JSON");
  auto* explain =
      app.add_subcommand("explain", "What happened to a job, also to one that has ended");
  std::string folder;
  explain->add_option("--job", job, "Its name; needed where several run");
  explain->add_flag("--json", json, "As JSON: a line for each recovery and each remark");
  explain->add_option("DIR", folder, "The log folder of a job that has ended");
  Serving serve;
  serve.offer(app);
  InjectOptions inject;
  inject.offer(app, job);
  Stopping stop;
  stop.offer(app, job);
  Pausing pausing;
  pausing.offer(app, job);
  Moving move;
  move.offer(app, job);
  Housekeeping housekeeping;
  housekeeping.offer(app);
  offer_own_parsers(app);

  if (argc < 2) {
    std::fprintf(stderr, "holdfast: say what to do: there are %s (--help tells of each)\n",
                 kCommands);
    return 2;
  }
  if (const auto code = run_by_own_parser(argc, argv)) return *code;
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    return refuse(argv[1], error.what());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fprintf(stderr, "holdfast: %s\n", error.what());
    return 2;
  }
  if (status->parsed()) return apps::status(job, json);
  if (serve.app->parsed()) return apps::serve(serve.arguments);
  if (explain->parsed()) return apps::explain(job, folder, json);
  if (inject.app->parsed()) {
    inject.arguments.job = job;
    return apps::inject(inject.arguments);
  }
  if (stop.app->parsed()) return apps::stop(job, stop.after_step, stop.timeout_s);
  if (pausing.is_meant()) return apps::pause(job, pausing.pause->parsed());
  if (move.is_meant()) {
    return apps::move(job, move.from, move.to, move.drain->parsed(), move.timeout_s);
  }
  return housekeeping.run();
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) {
  const int code = holdfast::run(argc, argv);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.flush()) return code;
  std::fprintf(stderr,
               "holdfast: what was to be said could not all be written: is the disk full?\n");
  return code == 0 ? 1 : code;
}
