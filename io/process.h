// Starts child processes, tells how they ended, and looks at processes through /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/fd.h"
#include "io/loop.h"

namespace holdfast::io {

// A descriptor of ours that the child has under the number `as` (3 or above).
struct Inherited {
  int from = -1;
  int as = -1;
};

struct SpawnOptions {
  std::vector<std::string> argv;         // argv[0]: the path of the program (see find_program).
  std::vector<std::string> environment;  // The whole of it, as NAME=value; nothing is added.
  std::string working_directory;         // Empty: ours.
  std::string output;  // A file that stdout and stderr are appended to; empty: ours.
  std::vector<Inherited> inherit;
  int nice = 0;                 // Added to ours.
  bool idle = false;            // SCHED_IDLE: runs only when nothing else wants the processor.
  bool die_with_parent = true;  // SIGKILL when the *thread* that called spawn() ends.
};

struct Child {
  pid_t pid = 0;
  Fd pidfd;
};

// Starts a process. It has its stdin from /dev/null, stdout and stderr as asked, the inherited
// descriptors and no others; default signal actions and an empty signal mask. It is the leader of
// its own process group, so that a Ctrl-C reaches only the parent, which passes it on with
// signal_group() when and as it sees fit. Errors name the program; a program that can not be
// executed is an error here, not a child that exits. Thread-safe.
Result<Child> spawn(const SpawnOptions& options);

// How a process ended.
struct Exit {
  int code = 0;    // 0..255, where signal is 0.
  int signal = 0;  // The signal that killed it, or 0.
  // 0..255, or 128 + signal, as a shell says it.
  [[nodiscard]] int shell_code() const { return signal != 0 ? 128 + signal : code; }
  bool operator==(const Exit&) const = default;
};

// In words that follow a name: "was killed by signal 9 (SIGKILL)", "exited with code 3".
// Of a signal that a limit sends it names the limit.
std::string describe(const Exit& exit);

// Calls `on_exit` once, in the loop, when the child has ended, and reaps it. Copies the descriptor.
// From the loop's thread, or while no thread runs the loop. Throws std::system_error where no
// descriptor can be had.
void watch(Loop& loop, int pidfd, std::function<void(Exit)> on_exit);

// Waits for the child's end and reaps it; for programs without a Loop, and tests.
Result<Exit> wait_for(int pidfd);

// Sends a signal to the child, or to its whole process group. A process that is gone is no error.
Status send_signal(int pidfd, int signal);
Status signal_group(pid_t leader, int signal);

// True where none of the process's threads can write memory any more: each is on its way out of the
// kernel's door (PF_EXITING) or gone. With 30 GB that is most of a second before pidfd and EOF
// tell. Of one that can not be looked at (no free descriptor) nothing is claimed: false.
bool is_exiting(pid_t pid);

// The entries of a folder of /proc whose names are numbers: the processes in "/proc", the threads
// of one in "/proc/<pid>/task". What appears or ends meanwhile may be missing or not.
std::vector<pid_t> numbers_in(const std::string& folder);

// True where a signal has stopped the process as a whole (SIGSTOP): it does nothing until another
// signal lets it go on. Slowness never looks like this, nor does a debugger's hold.
bool is_stopped(pid_t pid);

// The processor time, in ns, that a stopped process had used; nothing where it is not stopped. If
// two looks find the same, it has not run between them: not even long enough to be stopped again.
std::optional<std::uint64_t> stopped_at(pid_t pid);

// When the process was started, in clock ticks since boot: with the pid it names one process for
// good. Nothing where there is no such process.
std::optional<std::uint64_t> start_time(pid_t pid);

// True where that very process is there and not yet dead (a zombie is dead), or can not be looked
// at.
bool same_process_alive(pid_t pid, std::uint64_t start_time);

// The PID namespace of a process, of our own for 0: numbers of processes mean the same to all that
// are in one. Nothing where it can not be told, or where /proc shows the processes of another.
std::optional<std::uint64_t> pid_namespace(pid_t pid = 0);

// The path of a program: `name` itself where it has a slash, else the first match in `path` (as the
// variable PATH: folders with ':' between). Errors say which: not found, not executable, a folder.
Result<std::string> find_program(const std::string& name, std::string_view path);

}  // namespace holdfast::io
