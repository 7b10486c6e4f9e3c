// Starts child processes, and tells how they ended.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "os/fd.h"

namespace holdfast::os {

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

// How the child ended, which is then reaped. Nothing while it still runs.
std::optional<Exit> ended(int pidfd);

// Waits for the child's end and reaps it; for programs without a Loop, and tests.
Result<Exit> wait_for(int pidfd);

}  // namespace holdfast::os
