// Workers that were started by hand on the scheduler's host. They are written down in the job's
// folder, because only the scheduler can prove their death, even if a worker was killed together
// with a former scheduler.
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

  // Takes back what a predecessor has written, and returns it. Returns nothing if there is no file,
  // or if its numbers are of another boot or PID namespace.
  std::vector<LocalWorker> load();

  // add() writes a worker down if it is new. remove() takes out one that was proven dead. Errors:
  // the file can not be written. Then a successor has to wait for the lease.
  Status add(const LocalWorker& worker);
  Status remove(Incarnation incarnation);

 private:
  [[nodiscard]] Status write() const;

  std::string directory_;
  std::map<Incarnation, LocalWorker> workers_;
};

}  // namespace holdfast::runtime
