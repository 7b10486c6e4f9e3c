// Journal: one wire::Formation on disk, replaced whole in one transaction, and the job's
// key-values, which are only added to. The scheduler restarts from it.
//
// It is SQLite with a write-ahead log and synchronous=NORMAL. When store() has returned, what was
// stored outlives this process. A power loss or a crash of the kernel may lose the newest ones.
// Then the file holds an older formation, and it is whole.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

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

  // The formation that was stored last, if any. One that is damaged is an error, never a guess.
  Result<std::optional<wire::Formation>> load();

  // The key-values, in no order. One that is damaged is an error, too.
  Result<std::vector<wire::KeyValue>> load_kept();

  // Replaces the formation, if there is one, and adds key-values. On an error all is as before.
  Status store(const std::optional<wire::Formation>& formation,
               const std::vector<wire::KeyValue>& kept = {});
  // The same for another run, which begins without key-values.
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
