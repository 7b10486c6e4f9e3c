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
  std::vector<std::string> environment;  // The whole environment, as NAME=value; nothing is added.
  // A file that stdout and stderr are appended to; empty: those of this process.
  std::string output;
  std::vector<Inherited> inherit;
  bool idle = false;  // SCHED_IDLE: runs only when nothing else wants the processor.
};

struct Child {
  pid_t pid = 0;
  Fd pidfd;
};

// Starts a process. It gets SIGKILL when the *thread* that called spawn() ends. Its stdin is
// /dev/null, and stdout and stderr are as asked. It has the inherited descriptors and no others,
// default signal actions and an empty signal mask. It leads its own process group. So a Ctrl-C
// reaches only the parent, which may pass it on with signal_group(). Errors name the program. A
// program that can not be executed is an error here, not a child that exits. Thread-safe.
Result<Child> spawn(const SpawnOptions& options);

// How a process ended.
struct Exit {
  int code = 0;    // 0..255, where signal is 0.
  int signal = 0;  // The signal that killed it, or 0.
  // 0..255, or 128 + signal, as a shell says it.
  [[nodiscard]] int shell_code() const { return signal != 0 ? 128 + signal : code; }
  bool operator==(const Exit&) const = default;
};

// In words that follow a name: "was killed by signal 9 (SIGKILL)", "exited with code 3". If a limit
// sent the signal, the words name the limit.
std::string describe(const Exit& exit);

// How a child has ended; it stays to be reaped. Nothing while it still runs.
std::optional<Exit> ended(int pidfd);

// Reaps a child that has ended, in a thread of its own. For the kernel spins in it as long as one
// of the child's threads that died at idle priority waits for a processor: for seconds on a busy
// machine, if somebody has looked at these threads in /proc.
void reap_later(Fd pidfd);

// Waits for the child's end, and reaps it.
Result<Exit> wait_for(int pidfd);

}  // namespace holdfast::os
