#include "runtime/scheduler/report_publisher.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/text.h"
#include "os/errors.h"
#include "os/fd.h"
#include "os/files.h"
#include "runtime/jobs/job_files.h"
#include "runtime/scheduler/say.h"

namespace holdfast::runtime {
namespace {

constexpr std::size_t kReportsShown = 16;
constexpr Duration kHowPatience = std::chrono::milliseconds(500);  // From a death to its exit code.

}  // namespace

void ReportPublisher::load() {
  const std::string text = read_left(directory_, kReports);
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    newest_.push_back(text.substr(start, end - start));
    start = end + 1;
  }
}

void ReportPublisher::remove() {
  ::unlink(path_.c_str());
  ::unlink(cat(directory_, '/', kLastStatus).c_str());
}

void ReportPublisher::note(const controller::Note& note) {
  const bool is_how = note.kind == controller::Note::Kind::kHow;
  if (is_how && held_ && complete(*held_, note) && !lacks_how(*held_)) publish();
  take(log_.note(io::Loop::now(), note));
}

void ReportPublisher::finish(const wire::Reason& end) {
  take(log_.finish(io::Loop::now(), end));
  publish();
}

void ReportPublisher::keep(const std::string& status) const {
  const auto kept = os::write_file_atomically(directory_ + "/" + kLastStatus, status + "\n");
  if (!kept) say(kept.error().what);
}

void ReportPublisher::take(std::optional<RecoveryReport> report) {
  if (!report) return;
  publish();
  if (!lacks_how(*report)) return publish(*std::move(report));
  held_ = std::move(report);
  loop_.after(kHowPatience, [this, number = held_->number] {
    if (held_ && held_->number == number) publish();
  });
}

void ReportPublisher::publish() {
  if (auto report = std::exchange(held_, std::nullopt)) publish(*std::move(report));
}

void ReportPublisher::publish(RecoveryReport report) {
  const auto now = std::chrono::system_clock::now() - (io::Loop::now() - report.detected);
  for (Fault& fault : report.faults) fault.drill = drill_behind_(fault.what);
  report.unix_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  say(in_words(report));
  newest_.push_back(to_json(report));
  while (newest_.size() > kReportsShown) newest_.pop_front();
  const auto file = os::open_own_file(path_, O_WRONLY | O_CREAT | O_APPEND);
  const std::string line = newest_.back() + "\n";
  if (!file) return say(file.error().what);
  if (::write(file->get(), line.data(), line.size()) < 0) {
    say(os::system_error(cat("cannot write ", path_), errno).what);
  }
}

}  // namespace holdfast::runtime
