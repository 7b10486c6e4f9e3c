// Journal: one wire::Formation on disk, replaced whole in one transaction. The scheduler restarts
// from it.
//
// It is SQLite with a write-ahead log and synchronous=NORMAL. When store() has returned, the
// formation outlives this process. A power loss or a crash of the kernel may lose the newest ones.
// Then the file holds an older formation, and it is whole.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "wire/formation.h"

namespace holdfast::io {

// For one thread at a time. A file has one Journal at a time: a second open(), by any process,
// waits some seconds for the first to go, and is then refused.
class Journal {
 public:
  // Opens the journal of `job`, or makes it (mode 0600). The folder must exist. Errors give the
  // path and say how to go on: it is another job's journal, no journal, a journal of another
  // schema, or held by another process.
  static Result<Journal> open(const std::string& path, const std::string& job);

  // The formation that was stored last, if any. One that is damaged is an error, never a guess.
  Result<std::optional<wire::Formation>> load();

  // Replaces the formation. On an error the old one is still there.
  Status store(const wire::Formation& formation);

  Journal(Journal&&) noexcept;
  Journal& operator=(Journal&&) noexcept;
  ~Journal();

 private:
  struct Impl;
  explicit Journal(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::io
