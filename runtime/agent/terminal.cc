#include "runtime/agent/terminal.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "base/text.h"
#include "io/loop.h"
#include "os/files.h"

namespace holdfast::runtime {

constexpr std::size_t kTailLines = 20;

void Terminal::say(const std::string& text) {
  if (std::exchange(line_shown_, false)) std::printf("\n");
  std::fflush(stdout);
  std::fprintf(stderr, "msrun: %s\n", text.c_str());
}

std::string Terminal::rate(Version made) {
  const Instant now = io::Loop::now();
  const std::chrono::duration<double> past = now - counted_at_;
  if (counted_ == kNoVersion || made < counted_) {  // Or it goes on from an older step.
    rate_.clear();
  } else if (past < std::chrono::seconds(1)) {
    return rate_;
  } else {
    char text[40];
    std::snprintf(text, sizeof text, "  %.3g steps/s",
                  static_cast<double>(made - counted_) / past.count());
    rate_ = text;
  }
  counted_ = made;
  counted_at_ = now;
  return rate_;
}

void Terminal::show(const wire::JobProgress& progress, std::size_t alive, std::int32_t local) {
  if (::isatty(STDOUT_FILENO) != 1) return;
  std::printf("\r\033[Kstep %llu%s  loss %.4g  generation %llu  %zu/%d ranks  %llu %s",
              static_cast<unsigned long long>(progress.version), rate(progress.version).c_str(),
              progress.loss, static_cast<unsigned long long>(progress.generation), alive, local,
              static_cast<unsigned long long>(progress.recoveries),
              progress.recoveries == 1 ? "recovery" : "recoveries");
  std::fflush(stdout);
  line_shown_ = true;
}

void Terminal::show(const JobEnd& end) {
  if (end.recoveries != 0) {
    say(cat(end.recoveries, end.recoveries == 1 ? " recovery: " : " recoveries: ", end.reports,
            end.recoveries == 1 ? " tells of it" : " tells of each"));
  }
  if (end.exit_code == 0) {
    return say(cat("the job has ended in good order; logs are in ", end.log_directory));
  }
  say(cat(end.was_asked ? "the job was ended: " : "the job has failed: ", end.reason));
  if (end.failed_log.empty()) return say(cat("logs are in ", end.log_directory));
  const std::string words = os::tail(end.failed_log, kTailLines);
  if (words.empty()) {
    return say(cat("the log of the process that failed, ", end.failed_log, ", is empty"));
  }
  say(cat("the last lines of ", end.failed_log, ":"));
  std::fprintf(stderr, "%s%s", words.c_str(), words.ends_with('\n') ? "" : "\n");
}

}  // namespace holdfast::runtime
