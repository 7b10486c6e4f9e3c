// Journal: the job's wire::Formation on disk and its key-values. The scheduler restarts from it.
//
// It is SQLite with a write-ahead log and synchronous=NORMAL. When store() has returned, what was
// stored outlives this process. A power loss or a crash of the kernel may lose the newest ones.
// Then the file holds what was stored before them, and it is whole.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "wire/messages.h"

namespace holdfast::io {

// For one thread at a time. A file has one Journal at a time: a second open(), by any process,
// waits some seconds for the first to go, and is then refused.
class Journal {
 public:
  // Opens the journal of `job`, or makes it (mode 0600). The folder must exist. Errors give the
  // path and say how to go on: it is another job's journal, no journal, a journal of another
  // schema, or held by another process.
  static Result<Journal> open(const std::string& path, const std::string& job);

  // What was stored last. Anything damaged is an error, never a guess.
  Result<wire::Memory> load();

  // All of it is durable, or all is as before and there is an error. It writes what has changed: a
  // recovery of one rank of 10,000 writes one seat.
  Status store(const wire::Changes& changes);
  // The same for another run, which begins without anything.
  Status begin(const wire::Formation& formation);

  Journal(Journal&&) noexcept;
  Journal& operator=(Journal&&) noexcept;
  ~Journal();

 private:
  struct Impl;
  explicit Journal(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::io
