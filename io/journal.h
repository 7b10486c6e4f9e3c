// Journal: what the scheduler must not forget, wire::Formation and the job's key-values. A
// scheduler that is started again reads it. The usual one is a file of SQLite; io/etcd_journal.h
// has another.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "wire/messages.h"

namespace holdfast::io {

// For one thread at a time.
class Journal {
 public:
  // The journal of `job` in a file, which is made (mode 0600) if it is missing. The folder must
  // exist. Errors give the path and say how to go on: it is another job's journal, no journal, a
  // journal of another schema, or held by another process. A file has one Journal at a time: a
  // second open(), by any process, waits some seconds for the first to go, and is then refused.
  //
  // It is SQLite with a write-ahead log and synchronous=NORMAL. When store() has returned, what was
  // stored outlives this process. A power loss or a crash of the kernel may lose the newest ones.
  // Then the file holds what was stored before them, and it is whole.
  static Result<std::unique_ptr<Journal>> open(const std::string& path, const std::string& job);

  virtual ~Journal() = default;

  // Returns what was stored last. Damage is an error: nothing is guessed.
  virtual Result<wire::Memory> load() = 0;

  // Afterwards all of `changes` is durable; or there is an error, and nothing has changed. Writes
  // only what has changed: a recovery of one rank of 10,000 writes no other ranks, or few.
  virtual Status store(const wire::Changes& changes) = 0;
  // store() for a new run: all that another one has left is deleted.
  virtual Status begin(const wire::Formation& formation) = 0;

  // Whether one store() takes both; each alone fits.
  [[nodiscard]] virtual bool takes_at_once(const wire::Changes& /*first*/,
                                           const wire::Changes& /*later*/) const {
    return true;
  }
  // Whether store() waits for no disk and no other host: it takes less time than to wake a thread.
  [[nodiscard]] virtual bool is_in_memory() const { return false; }

  // The job has ended: nothing of it is left. The last call.
  virtual Status remove() = 0;

  [[nodiscard]] virtual std::string name() const = 0;  // The journal's name in messages.
};

}  // namespace holdfast::io
