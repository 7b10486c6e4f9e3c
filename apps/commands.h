// The commands of `holdfast`. Each returns the exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace holdfast::apps {

// `holdfast run` and msrun: reads the arguments that follow the command, and runs the agent.
// `name`: the one of the two that is used.
int launch(const std::string& name, int argc, const char* const* argv,
           const char* const* environment);

// `holdfast status`: prints the state of the job (`job` empty: of the only one that runs), as JSON
// if `json`. Exit code 1: the job does not run or does not answer; 2: several run, and none is
// named.
int status(const std::string& job, bool json);

// `holdfast serve`: serves the status page of a job and its metrics, until it is ended by a signal.
// It prints the page's address. Exit code 1: the job does not run when the command starts, or the
// address can not be had, and it prints why; 2: as of status(), or a wrong command line.
struct ServeArguments {
  std::string job;
  std::string listen = "127.0.0.1:9400";
  std::string saved;         // A file with a status: it is shown in place of a running job.
  bool print_token = false;  // Only prints the page's token.
};
int serve(const ServeArguments& arguments);

// `holdfast explain`: prints what happened to a job in the order of time, a paragraph for each
// recovery and each remark; or a JSON object for each, if `json`. `folder`: the log folder of a
// job; empty: `job` is meant, as by status(), also if it is dead. Exit code 1: nothing is known of
// the job; 2: as of status().
int explain(const std::string& job, const std::string& folder, bool json);

// `holdfast drain FROM` (`drains`) and `holdfast move FROM TO`: moves the ranks of host `from` to
// host `to`; `to` empty: to any host that takes them. Returns once the scheduler has decided, at
// the end of a step. Exit code 1: they can not move, and it prints why.
int move(const std::string& job, const std::string& from, const std::string& to, bool drains,
         int timeout_s);

// `holdfast stop`: has a job make a snapshot, if it makes any, and end, as by SIGTERM. Not before
// step `after_step` is made. Returns once the snapshot is on the disk. Exit code 1: nobody answers,
// or the order makes no sense, and it prints why.
int stop(const std::string& job, std::int64_t after_step, int timeout_s);

// `holdfast doctor`: says what this host has, what will not work and what to do. Exit code 1: a job
// would not start. `port`: where its scheduler would listen.
int examine_host(std::uint16_t port, const char* const* environment);

// `holdfast pause` (`on`) and `holdfast resume`: has a job make no further step, or go on. Returns
// once no rank can make one, or after 10 s. Exit code 1: it does not stand still yet, or nobody
// answers, and it prints why.
int pause(const std::string& job, bool on);

// `holdfast snapshot now`: has a job make a snapshot. Returns once it is on the disk. Exit code 1:
// it was not made, and it prints why.
int snapshot_now(const std::string& job, int timeout_s);

// `holdfast inject`: has something happen to a rank, or a host, of a job that takes drills
// (docs/drills.md).
// Prints what. Exit code 1: the scheduler would not, and it prints why; 2: a wrong command line.
struct InjectArguments {
  std::string job;
  std::string kind;
  int rank = -1;
  std::string host;   // Empty: a rank is meant.
  std::string phase;  // Empty: that of the kind.
  std::int64_t at_step = 0;
  std::optional<double> seconds;
};
int inject(const InjectArguments& arguments);

// `holdfast clean`: removes what dead jobs of this user have left on this host. Prints what it
// removes, or would remove (`dry_run`), and what it leaves alone. Exit code 1: something could not
// be removed, or is in the place of a job's folder and is no private folder of this user.
int clean(bool dry_run);

// `holdfast verify`: replaces this process by python/holdfast/verify, which tests that a program
// goes on with the same bits after faults; with the arguments that follow the command. Returns only
// if there is no Python.
int verify(int argc, const char* const* argv);

}  // namespace holdfast::apps
