#include "runtime/agent/inspector.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "base/text.h"
#include "os/fd.h"
#include "os/files.h"
#include "os/process.h"
#include "os/spawn.h"
#include "wire/messages.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr auto kSample = 150ms;         // Over which processor time is measured.
constexpr auto kStackPatience = 400ms;  // How long the printing of a stack may take.
constexpr std::size_t kMostStack = std::size_t{64} << 10;

// What the threads of the process have used of a processor, and in what state its main one is.
std::string activity_of(pid_t pid) {
  const std::uint64_t before = os::processor_time(pid);
  const auto began = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(kSample);
  const auto used = std::chrono::nanoseconds(os::processor_time(pid) - before);
  const auto took = std::chrono::steady_clock::now() - began;
  const std::string where = os::sleeps_in(pid);
  const std::string in = where.empty() ? "" : cat(" (", where, ")");
  switch (os::state_of(pid)) {
    case 'D':
      return cat("It waits in the kernel, for a disk or another device", in, ".");
    case 'T':
      return "A signal has stopped it.";
    case 't':
      return "A debugger holds it.";
    default:
      break;
  }
  const auto percent = 100 * used / took;
  if (percent >= 5) return cat("It computes or spins, with ", percent, " % of a processor.");
  return cat("It uses hardly any processor time: it waits", in, ".");
}

// What the command prints in time; empty: nothing.
std::string run(const Words& command, const std::string& output) {
  auto child = os::spawn({.argv = command, .environment = {}, .output = output, .inherit = {}});
  if (!child) return {};
  pollfd end{.fd = child->pidfd.get(), .events = POLLIN, .revents = 0};
  const bool in_time =
      ::poll(&end, 1, static_cast<int>(std::chrono::milliseconds(kStackPatience).count())) == 1;
  if (!in_time) (void)os::send_signal(child->pidfd.get(), SIGKILL);
  (void)os::wait_for(child->pidfd.get());
  auto text = os::read_file(output);
  ::unlink(output.c_str());
  if (!text || !in_time) return {};
  return text->substr(0, kMostStack);
}

// A program that prints stacks stops the process for a moment. It would wait for one in state D,
// and one that is stopped or debugged is left as it is. If it is killed in the midst, what it has
// stopped has to go on.
std::string stack_of(const Inspector::Subject& subject, const Launcher& launcher) {
  const char state = os::state_of(subject.pid);
  if (state == 'D' || state == 'T' || state == 't') return {};
  const Words command = launcher.stack_command(subject.pid, subject.environment);
  if (command.empty()) return {};
  std::string printed = run(command, subject.output);
  if (printed.empty()) (void)::kill(subject.pid, SIGCONT);
  return printed;
}

}  // namespace

Inspector::Inspector(io::Loop& loop, std::shared_ptr<const Launcher> launcher,
                     std::function<void(agent::Inspected)> on_done)
    : launcher_(std::move(launcher)) {
  shared_->loop = &loop;
  shared_->on_done = std::move(on_done);
}

Inspector::~Inspector() {
  const std::lock_guard lock(shared_->mutex);
  shared_->loop = nullptr;
}

void Inspector::begin(Subject subject) try {
  const bool is_first = logs_.insert(subject.log).second;
  std::thread([subject = std::move(subject), is_first, launcher = launcher_, shared = shared_] {
    std::string report = activity_of(subject.pid);
    const std::string printed = stack_of(subject, *launcher);
    const std::string stack = launcher->stack_in(printed);
    if (!stack.empty())
      report += cat(" Its stack, innermost first: ", stack, ". More: ", subject.log);
    report = wire::sentence(printable(report));
    {
      const std::lock_guard lock(shared->mutex);
      if (shared->loop == nullptr) return;
      shared->loop->post([shared, found = agent::Inspected{subject.process, report}] {
        if (shared->loop != nullptr) shared->on_done(found);
      });
    }
    if (stack.empty()) return;
    const int how = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | (is_first ? O_TRUNC : 0);
    const os::Fd log(::open(subject.log.c_str(), how, 0644));
    if (log) (void)os::write_all(log.get(), cat(report, '\n', printed, '\n'));
  }).detach();
} catch (const std::system_error&) {
  // The system has no thread left. The rank is named without a report.
}

}  // namespace holdfast::runtime
