// JournalWriter: writes a journal in a thread of its own, so that a loop goes on meanwhile. A
// journal in memory is written by the loop's thread, which is faster than to wake another one.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "base/result.h"
#include "io/journal.h"
#include "io/loop.h"
#include "wire/messages.h"

namespace holdfast::io {

// For the loop's thread.
class JournalWriter {
 public:
  // Called in the loop: so many more stores are durable, the oldest first. After an error nothing
  // is written any more.
  using Heard = std::function<void(const Result<std::size_t>&)>;

  // Requires: the loop does not run any more once this is destroyed.
  JournalWriter(Loop& loop, std::unique_ptr<Journal> journal, Heard heard);
  // Waits for the transaction that is under way. What has not begun is dropped, as by a crash.
  ~JournalWriter();
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;

  // All that comes during a transaction is stored by the next one, if the journal can take it as
  // one. After a crash, a transaction is there as a whole or not at all, and if not, no later one
  // is.
  void store(wire::Changes changes);

  // As Journal::remove(), after the transaction that is under way. The last call.
  Status remove();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::io
