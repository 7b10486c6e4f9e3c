#include "runtime/agent/inspector.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
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
  if (percent >= 1) return cat("It computes or spins, with ", percent, " % of a processor.");
  return cat("It uses no processor: it waits", in, ".");
}

std::string run(const Words& command, const std::string& output) {
  auto child = os::spawn({.argv = command, .environment = {}, .output = output, .inherit = {}});
  if (!child) return {};
  pollfd end{.fd = child->pidfd.get(), .events = POLLIN, .revents = 0};
  const bool in_time =
      ::poll(&end, 1, static_cast<int>(std::chrono::milliseconds(kStackPatience).count())) == 1;
  if (!in_time) (void)os::send_signal(child->pidfd.get(), SIGKILL);
  (void)os::wait_for(child->pidfd.get());
  std::string text = os::end_of(output, 0);
  ::unlink(output.c_str());
  if (!in_time) return {};
  text.resize(std::min(text.size(), kMostStack));
  return text;
}

}  // namespace

Inspector::~Inspector() {
  for (auto& look : looks_) look.thread.join();
}

std::string Inspector::report_on(const Subject& subject) const {
  std::string report = activity_of(subject.pid);
  if (subject.stack_command.empty()) return report;
  const std::string printed = run(subject.stack_command, subject.output);
  const std::string stack = launcher_->stack_in(printed);
  if (stack.empty()) return report;
  report += cat(" Its stack, innermost first: ", stack);
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC;
  const os::Fd log(::open(subject.log.c_str(), kFlags, 0644));
  if (log && os::write_all(log.get(), cat(report, '\n', printed, '\n'))) {
    report += cat(". All of it: ", subject.log);
  }
  report.resize(std::min(report.size(), wire::kMaxSentenceBytes));
  return report;
}

void Inspector::begin(Subject subject) try {
  std::erase_if(looks_, [](Look& look) {
    if (!*look.done) return false;
    look.thread.join();
    return true;
  });
  Look look;
  look.thread = std::thread([this, subject = std::move(subject), done = look.done] {
    agent::Inspected found{subject.process, printable(report_on(subject))};
    loop_.post([this, found = std::move(found)]() mutable { on_done_(std::move(found)); });
    *done = true;
  });
  looks_.push_back(std::move(look));
} catch (const std::system_error&) {
  // The system has no thread left. The rank is named without a report.
}

}  // namespace holdfast::runtime
