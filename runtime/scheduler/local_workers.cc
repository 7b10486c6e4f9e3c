// The file begins with os::shared_memory_name(), which names the boot and the PID namespace of the
// pids in it. Each further line is a worker: incarnation, pid, start time, node id.
#include "runtime/scheduler/local_workers.h"

#include <sstream>

#include "base/text.h"
#include "os/host.h"

namespace holdfast::runtime {

namespace {

constexpr const char* kFile = "workers-by-hand";

}  // namespace

LocalWorkers::LocalWorkers(const std::string& directory) : directory_(directory) {}

std::vector<LocalWorker> LocalWorkers::load() {
  const auto folder = os::open_runtime_directory(directory_);
  if (!folder || !*folder) return {};
  const auto text = folder->read(kFile);
  if (!text) return {};
  std::istringstream lines(*text);
  std::string line;
  if (!std::getline(lines, line) || line != os::shared_memory_name()) return {};
  std::vector<LocalWorker> found;
  while (std::getline(lines, line)) {
    LocalWorker worker;
    std::istringstream words(line);
    words >> worker.incarnation >> worker.pid >> worker.start_time;
    words.get();  // The blank before the node id, which may have blanks itself.
    if (!words || worker.pid <= 1 || !std::getline(words, worker.node_id)) continue;
    workers_[worker.incarnation] = worker;
    found.push_back(std::move(worker));
  }
  return found;
}

Status LocalWorkers::add(const LocalWorker& worker) {
  if (worker.node_id.find('\n') != std::string::npos) return {};
  if (!workers_.emplace(worker.incarnation, worker).second) return {};
  return write();
}

Status LocalWorkers::remove(Incarnation incarnation) {
  if (workers_.erase(incarnation) == 0) return {};
  return write();
}

Status LocalWorkers::write() const {
  std::string text = os::shared_memory_name() + "\n";
  for (const auto& [incarnation, worker] : workers_) {
    text += cat(incarnation, ' ', worker.pid, ' ', worker.start_time, ' ', worker.node_id, '\n');
  }
  const auto folder = os::open_runtime_directory(directory_);
  if (!folder) return folder.error();
  if (!*folder) return Error{Blame::kWorld, cat("the job's folder ", directory_, " is gone")};
  return folder->write(kFile, text);
}

}  // namespace holdfast::runtime
