#include "runtime/agent/snapshot_writer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "base/number.h"
#include "base/text.h"
#include "os/slice.h"
#include "runtime/jobs/snapshots.h"
#include "snapshot/folder.h"

namespace holdfast::runtime {
namespace {

using wire::SnapshotWord;

Status write(const SnapshotWriter::Options& options, wire::Snapshot& order) {
  if (options.folder.empty()) {
    return Error{Blame::kUser,
                 "its launcher was started without --snapshot: give all hosts the same"};
  }
  for (wire::SnapshotFile& file : order.files) {
    const std::string part = cat(options.job_directory, '/', parts_begin(file.rank), order.version);
    const auto stored = snapshot::store_shard(part, options.folder, order.name, file.rank);
    const std::string free = cat(options.job_directory, '/', parts_begin(file.rank), kFreePart);
    if (::rename(part.c_str(), free.c_str()) != 0) ::unlink(part.c_str());
    if (!stored) return stored.error();
    file.bytes = stored->bytes;
    file.digest = stored->digest;
  }
  return {};
}

// The name of a snapshot begins with its run.
std::string run_of(const std::string& name) {
  return name.substr(0, name.find('-'));
}

// Returns the answer.
wire::Snapshot carry_out(const SnapshotWriter::Options& options, wire::Snapshot order) {
  const bool writes = order.word == SnapshotWord::kWrite;
  const Status done = writes ? write(options, order) : name_snapshot(options, order);
  order.word = !done    ? SnapshotWord::kFailed
               : writes ? SnapshotWord::kWritten
                        : SnapshotWord::kNamed;
  if (!writes) order.files.clear();
  order.old.clear();
  if (!done) {
    // What was written of it takes the room that the next one needs.
    if (writes) (void)snapshot::remove(options.folder, order.name);
    order.files.clear();
    order.why = wire::sentence(done.error().what);
  }
  return order;
}

}  // namespace

Status name_snapshot(const SnapshotWriter::Options& options, const wire::Snapshot& order) {
  const auto found = snapshot::find(options.folder);
  if (!found) return found.error();
  // Newer than all that are there, also if this host's clock is behind.
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::int64_t unix_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  for (const auto& one : found->whole) unix_ms = std::max(unix_ms, one.manifest.unix_ms + 1);
  snapshot::Manifest manifest{.job = options.job,
                              .run_id = number_of_hex(run_of(order.name)).value_or(0),
                              .version = order.version,
                              .world_size = options.world_size,
                              .servers = options.servers,
                              .program = options.program,
                              .unix_ms = unix_ms,
                              .files = {},
                              .release = HOLDFAST_VERSION};
  for (const auto& file : order.files) {
    manifest.files.push_back({.rank = file.rank, .bytes = file.bytes, .digest = file.digest});
  }
  if (auto named = snapshot::name_snapshot(options.folder, order.name, manifest); !named) {
    return named;
  }
  // The snapshot is whole: what can not be removed costs only room.
  for (const auto& name : order.old) (void)snapshot::remove(options.folder, name);
  remove_unfinished(options.folder, order.name);
  return {};
}

void remove_unfinished(const std::string& folder, const std::string& name) {
  const auto found = snapshot::find(folder);
  for (const auto& half : found ? found->half : std::vector<std::string>()) {
    if (half != name && run_of(half) == run_of(name)) (void)snapshot::remove(folder, half);
  }
}

SnapshotWriter::SnapshotWriter(io::Loop& loop, Options options,
                               std::function<void(wire::Snapshot)> on_done)
    : options_(std::move(options)) {
  shared_->loop = &loop;
  shared_->on_done = std::move(on_done);
}

SnapshotWriter::~SnapshotWriter() {
  const std::lock_guard lock(shared_->mutex);
  shared_->loop = nullptr;
}

void SnapshotWriter::begin(wire::Snapshot order) {
  const auto fail = [&](const std::string& why) {
    order.word = SnapshotWord::kFailed;
    order.files.clear();
    order.why = why;
    shared_->loop->post([shared = shared_, answer = std::move(order)] { shared->on_done(answer); });
  };
  {
    const std::lock_guard lock(shared_->mutex);
    if (std::exchange(shared_->is_busy, true)) {
      return fail("this host still writes the one before: its disk is too slow for so many");
    }
  }
  try {
    std::thread([shared = shared_, options = options_, order]() mutable {
      os::take_usual_slice();
      auto answer = carry_out(options, std::move(order));
      const std::lock_guard lock(shared->mutex);
      shared->is_busy = false;
      if (shared->loop == nullptr) return;
      shared->loop->post(
          [shared, answer = std::move(answer)]() mutable { shared->on_done(std::move(answer)); });
    }).detach();
  } catch (const std::system_error& error) {
    shared_->is_busy = false;
    fail(cat("no thread can be started to write it: ", error.what()));
  }
}

}  // namespace holdfast::runtime
