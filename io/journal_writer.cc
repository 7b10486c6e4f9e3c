#include "io/journal_writer.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "os/slice.h"

namespace holdfast::io {
namespace {

// Several changes, merged into one.
class Batch {
 public:
  explicit Batch(wire::Changes first) { add(std::move(first)); }

  void add(wire::Changes later) {
    if (later.formation) {
      auto roster = all_.formation ? std::move(all_.formation->roster) : std::vector<wire::Seat>();
      all_.formation = std::move(later.formation);
      if (all_.formation->roster.empty()) {
        all_.formation->roster = std::move(roster);
      } else {
        all_.seats.clear();
      }
    }
    for (auto& [rank, seat] : later.seats) all_.seats[rank] = std::move(seat);
    for (auto& pair : later.kept) {
      const auto [at, is_new] = kept_.emplace(pair.key, all_.kept.size());
      if (is_new) all_.kept.emplace_back();
      all_.kept[at->second] = std::move(pair);
    }
    for (const auto& last : later.writers) {
      const auto [at, is_new] = writers_.emplace(last.writer, all_.writers.size());
      if (is_new) all_.writers.emplace_back();
      all_.writers[at->second] = last;
    }
    all_.remarks.merge(later.remarks);
    ++size_;
  }

  [[nodiscard]] const wire::Changes& all() const { return all_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  wire::Changes all_;
  std::map<std::string, std::size_t> kept_;  // Positions in all_.kept and all_.writers.
  std::map<std::uint64_t, std::size_t> writers_;
  std::size_t size_ = 0;
};

}  // namespace

class JournalWriter::Impl {
 public:
  Impl(Loop& loop, std::unique_ptr<Journal> journal, Heard heard)
      : loop_(loop), journal_(std::move(journal)), heard_(std::move(heard)) {
    if (!journal_->is_in_memory()) thread_ = std::thread([this] { run(); });
  }
  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void store(wire::Changes changes) {
    if (!thread_.joinable()) return write(Batch(std::move(changes)));
    {
      const std::lock_guard held(mutex_);
      queue_.push_back(std::move(changes));
    }
    wake_.notify_one();
  }

  Status remove() {
    stop();
    return journal_->remove();
  }

 private:
  void stop() {
    {
      const std::lock_guard held(mutex_);
      stops_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  // Waits for the next batch. nullopt: stop() was called.
  std::optional<Batch> next() {
    std::unique_lock held(mutex_);
    wake_.wait(held, [this] { return stops_ || !queue_.empty(); });
    if (stops_) return std::nullopt;
    const auto take = [this] {
      wire::Changes oldest = std::move(queue_.front());
      queue_.pop_front();
      return oldest;
    };
    Batch batch(take());
    while (!queue_.empty() && journal_->takes_at_once(batch.all(), queue_.front())) {
      batch.add(take());
    }
    return batch;
  }

  void run() {
    (void)os::take_short_slice();  // In a recovery all ranks wait for this thread.
    while (const auto batch = next()) write(*batch);
  }

  void write(const Batch& batch) {
    if (failed_) return;
    const Status stored = journal_->store(batch.all());
    failed_ = !stored;
    Result<std::size_t> said = batch.size();
    if (!stored) said = stored.error();
    loop_.post([this, said = std::move(said)] { heard_(said); });
  }

  Loop& loop_;
  const std::unique_ptr<Journal> journal_;
  const Heard heard_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<wire::Changes> queue_;
  bool stops_ = false;
  bool failed_ = false;  // Used only by the thread that writes.
  std::thread thread_;   // Writes; none: the loop's thread writes.
};

JournalWriter::JournalWriter(Loop& loop, std::unique_ptr<Journal> journal, Heard heard)
    : impl_(std::make_unique<Impl>(loop, std::move(journal), std::move(heard))) {}
JournalWriter::~JournalWriter() = default;

void JournalWriter::store(wire::Changes changes) {
  impl_->store(std::move(changes));
}

Status JournalWriter::remove() {
  return impl_->remove();
}

}  // namespace holdfast::io
