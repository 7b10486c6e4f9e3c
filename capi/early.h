// Early: the time before a process has its session, and how it ends for all where one process is
// replaced: its successor can not take part in what the others did together.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "base/result.h"
#include "collective/current_generation.h"
#include "runtime/worker/worker.h"

namespace holdfast::capi {

// Says that the early time is over, to all processes of the run on this host. By a successor.
[[nodiscard]] Status end_early(const runtime::Identity& identity);

// Any thread; one per process.
class Early {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Early>> begin(const runtime::Identity& identity,
                                                            Duration join_timeout);
  ~Early();
  Early(const Early&) = delete;
  Early& operator=(const Early&) = delete;

  [[nodiscard]] const std::shared_ptr<collective::CurrentGeneration>& current() const {
    return current_;
  }
  void end() { current_->abort(kOnly); }

 private:
  Early() = default;
  void watch();

  static constexpr Generation kOnly = 1;
  std::shared_ptr<collective::CurrentGeneration> current_;
  std::string mark_;  // The file by which a successor ends it.
  int changes_ = -1;  // inotify
  int stop_ = -1;     // eventfd
  std::thread thread_;
};

}  // namespace holdfast::capi
