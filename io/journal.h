// Journal: one wire::Record on disk, replaced whole in one transaction; what the scheduler restarts
// from.
//
// SQLite with a write-ahead log and synchronous=NORMAL: when store() has returned, the record
// outlives the death of this process at any instant. A power loss or a kernel's death may lose the
// newest records but never gives half of one: the file then holds an older record, whole.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "wire/record.h"

namespace holdfast::io {

// For one thread at a time. One Journal per file: a second open(), by any process, waits some
// seconds for the first to be gone and is then refused.
class Journal {
 public:
  // Opens, or makes (mode 0600), the journal of `job`; the folder must exist. Refused, with the
  // path and a way to go on: the journal of another job, a file that is no SQLite database or no
  // journal, a journal of a newer schema, a journal that another process holds.
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
