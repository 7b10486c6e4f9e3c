// Workers that were started by hand on the scheduler's host, as the job's folder keeps them: the
// scheduler alone can prove their death, also that of one that was killed together with it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace holdfast::runtime {

struct LocalWorker {
  std::string node_id;
  Incarnation incarnation = 0;
  pid_t pid = 0;
  std::uint64_t start_time = 0;  // With the pid it names one process (os/process.h).
};

class LocalWorkers {
 public:
  explicit LocalWorkers(const std::string& directory);

  // Takes back what a predecessor has written, and returns it. Nothing, where there is no file, or
  // where its numbers are of another boot or PID namespace.
  std::vector<LocalWorker> load();

  // Writes a worker down, if it is not there yet; takes out one that was proven dead. Errors: the
  // file can not be written; then a successor waits for the lease.
  Status add(const LocalWorker& worker);
  Status remove(Incarnation incarnation);

 private:
  [[nodiscard]] Status write() const;

  std::string path_;
  std::map<Incarnation, LocalWorker> workers_;
};

}  // namespace holdfast::runtime
