// Children: the processes of an agent, from their start until it is known how they ended.
//
// Each child has a log. A thread that watches the child's lifeline reports its death at once; its
// pidfd tells how it ended. Children decides nothing. Call it in the loop's thread only: the
// children die with the thread that started them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "core/agent/machine.h"
#include "io/loop.h"
#include "os/fd.h"
#include "os/lifeline.h"
#include "os/process.h"
#include "os/spawn.h"
#include "runtime/agent/inspector.h"
#include "runtime/agent/launcher.h"
#include "runtime/agent/log_folder.h"
#include "runtime/agent/rehearsal_folders.h"
#include "runtime/agent/starting_spares.h"

namespace holdfast::runtime {

struct ChildrenOptions {
  std::vector<std::string> argv;         // argv[0] is the program's path.
  std::vector<std::string> server;       // The same of a parameter server.
  std::vector<std::string> environment;  // The part that all children have in common.
  std::string job_directory;             // Holds the lifelines. It exists.
  std::shared_ptr<const Launcher> launcher = std::make_shared<Launcher>();  // It has made argv.
  std::string mark;        // Part of log names: spare_<mark><n>.log.
  bool stands_by = false;  // This agent's scheduler stands by (with etcd).
  bool goes_on = false;    // Append to the logs of a dead agent (--continue).
  LogFolder* logs = nullptr;
  int spare_share = 0;              // HOLDFAST_SPARE_SHARE
  std::vector<std::string> places;  // This host's node ids: their rehearsals may have left folders.
};

class Children {
 public:
  // `on_ready` is called when a spare has become ready and waits for a place.
  Children(io::Loop& loop, ChildrenOptions options, std::function<void(agent::Died)> on_died,
           std::function<void(agent::SpareReady)> on_ready);
  ~Children();  // Kills what still runs, at once.
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  Status spawn(const agent::Spawn& what);
  // Gives a waiting spare its place. If the spare is gone by now, on_died tells.
  void promote(const agent::Promote& what);
  // Signals the whole process group, which is to end.
  void kill(agent::Process process, int signal);
  // Signals the process alone, which may go on: the trainer, if a wrapper has started it.
  void tell(agent::Process process, int signal);
  void signal_all(int signal);  // The groups of all.

  // The newest log of a place ("scheduler", or a node id); empty if there is none.
  [[nodiscard]] std::string log_of(const std::string& node_id) const;
  [[nodiscard]] pid_t pid_of(agent::Process process) const;  // 0: not running.
  // The processes that a signal (SIGSTOP) has stopped. Not counted: processes in a debugger, and
  // those that the last call found stopped as well but that ran in between (cpulimit).
  [[nodiscard]] std::set<agent::Process> stopped();
  // Where the processes are that hold their lifelines; not those that a debugger holds.
  [[nodiscard]] std::map<agent::Process, Whereabouts> whereabouts();
  // What the Inspector has to know of a process; its pid is 0 if it does not run.
  [[nodiscard]] Inspector::Subject subject(agent::Process process,
                                           const std::string& node_id) const;
  [[nodiscard]] std::size_t running() const { return running_.size(); }

 private:
  // A thread that waits for one lifeline's end.
  struct Watcher {
    std::atomic<bool> cancel{false};
    std::atomic<bool> done{false};
    std::thread thread;
  };
  struct Running {
    os::Child child;
    std::string lifeline;
    std::string log;
    std::uint64_t log_begin = 0;  // The size of the log when this process began.
    // The process that holds the lifeline: the child, or one that a wrapper started.
    pid_t trainer = 0;
    std::optional<std::uint64_t> child_stopped_at;  // os::stopped_at(child), at the last stopped().
    std::optional<std::uint64_t> trainer_stopped_at;  // os::stopped_at(trainer), likewise.
    os::Fd pipe;                                      // Only for a spare: brings it its place.
    bool idle = false;      // A spare that runs at idle priority, at least at times.
    std::string rehearses;  // The place that is rehearsed; empty: no rehearsal.
    std::unique_ptr<Watcher> watcher;
    std::shared_ptr<os::Board> board;  // Of its lifeline.
  };

  void watch(agent::Process process);
  void retire(std::unique_ptr<Watcher> watcher);
  void lifeline_ended(agent::Process process, Instant when);
  void exited(agent::Process process, const os::Exit& exit);
  [[nodiscard]] std::string new_log(const agent::Spawn& what);
  [[nodiscard]] std::string rehearsal_log_of(const std::string& node_id);

  io::Loop& loop_;
  ChildrenOptions options_;
  std::function<void(agent::Died)> on_died_;
  bool idle_spares_ = false;
  RehearsalFolders folders_;
  std::set<std::string> rehearsed_;
  StartingSpares starting_;
  std::uint64_t spares_ = 0;
  std::map<agent::Process, Running> running_;
  std::vector<std::unique_ptr<Watcher>> retired_;  // Cancelled, not yet joined.
  std::map<std::string, std::string> logs_;        // The newest log of each place.
};

}  // namespace holdfast::runtime
