// Journal: one wire::Record on disk, replaced whole in one transaction; what the scheduler restarts
// from.
//
// It is SQLite with a write-ahead log and synchronous=NORMAL. When store() has returned, the record
// outlives this process. A power loss or a crash of the kernel may lose the newest records. Then
// the file holds an older record, and it is whole.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "wire/record.h"

namespace holdfast::io {

// For one thread at a time. A file has one Journal at a time: a second open(), by any process,
// waits some seconds for the first to go, and is then refused.
class Journal {
 public:
  // Opens the journal of `job`, or makes it (mode 0600). The folder must exist. Errors give the
  // path and say how to go on: it is another job's journal, no journal, a journal of a newer
  // schema, or held by another process.
  static Result<Journal> open(const std::string& path, const std::string& job);

  // The record that was stored last, if any. A record that is damaged is an error, never a guess.
  Result<std::optional<wire::Record>> load();

  // Replaces the record. On an error the old one is still there.
  Status store(const wire::Record& record);

  Journal(Journal&&) noexcept;
  Journal& operator=(Journal&&) noexcept;
  ~Journal();

 private:
  struct Impl;
  explicit Journal(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::io
