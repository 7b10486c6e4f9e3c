// JournalWriter: writes a journal in a thread of its own, so that a loop goes on meanwhile. One
// that is in memory is written by the loop's thread, which is faster than to wake another one.
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
  // In the loop: so many more of what store() was given are durable, the oldest first. An error is
  // the last word: nothing is written any more.
  using Heard = std::function<void(const Result<std::size_t>&)>;

  // The loop does not run once this has gone.
  JournalWriter(Loop& loop, std::unique_ptr<Journal> journal, Heard heard);
  // Waits for the transaction that is under way. What has not begun is dropped, as by a crash.
  ~JournalWriter();
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;

  // What has come since a transaction began is the next one, as far as the journal takes it as one:
  // after a crash all of it is there, or nothing, and nothing that came later.
  void store(wire::Changes changes);

  // As Journal::remove(), after the transaction that is under way. The last call.
  Status remove();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::io
