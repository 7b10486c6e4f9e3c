// Early: the time before a process has its session, and how it ends for all where one process is
// replaced: its successor can not take part in what the others did together.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "base/result.h"
#include "capi/era.h"
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

  [[nodiscard]] const std::shared_ptr<Era>& era() const { return era_; }

 private:
  Early() = default;
  void watch();

  std::shared_ptr<Era> era_;
  std::string mark_;  // The file by which a successor ends it.
  int changes_ = -1;  // inotify
  int stop_ = -1;     // eventfd
  std::thread thread_;
};

}  // namespace holdfast::capi
