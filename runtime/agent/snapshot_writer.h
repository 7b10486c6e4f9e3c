// SnapshotWriter: writes what the ranks of this host have left for a snapshot to the disk, and
// names snapshots. It does so in a thread of its own, which may wait for a disk that does not
// answer: the agent does not wait for it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "io/loop.h"
#include "wire/messages.h"

namespace holdfast::runtime {

class SnapshotWriter {
 public:
  struct Options {
    std::string folder;         // HOLDFAST_SNAPSHOT
    std::string job_directory;  // Where the ranks leave their parts.
    std::string job;            // This and the next three are for the manifest.
    std::string program;
    std::int32_t world_size = 0;
    std::int32_t servers = 0;
  };

  // `on_done` gets the answer to each order, in the loop.
  SnapshotWriter(io::Loop& loop, Options options, std::function<void(wire::Snapshot)> on_done);
  ~SnapshotWriter();  // What is under way goes on, and tells nobody.
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  // Requires: the word is kWrite or kName. One order is carried out at a time: a second one fails.
  void begin(wire::Snapshot order);

 private:
  struct Shared {  // With the thread.
    std::mutex mutex;
    io::Loop* loop = nullptr;  // Null: the writer is gone.
    bool is_busy = false;
    std::function<void(wire::Snapshot)> on_done;
  };

  const Options options_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

// Removes the snapshots of this one's run that were never finished, but for this one. Nobody writes
// another one of the run now. What can not be removed costs only room.
void remove_unfinished(const std::string& folder, const std::string& name);

// Makes a snapshot of the files that are all in their place, and removes those of its run that it
// replaces: `order.old`, and those that were never finished.
[[nodiscard]] Status name_snapshot(const SnapshotWriter::Options& options,
                                   const wire::Snapshot& order);

}  // namespace holdfast::runtime
