#include "runtime/worker/arena_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "arena/arrival.h"
#include "arena/losses.h"
#include "base/text.h"
#include "io/loop.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/host.h"
#include "os/lost_pages.h"
#include "os/shared_file.h"
#include "runtime/jobs/arena_parts.h"
#include "runtime/jobs/snapshots.h"
#include "runtime/worker/fetch.h"
#include "runtime/worker/ownership.h"
#include "runtime/worker/rehearsal.h"

namespace holdfast::runtime {
namespace {

// Another thread may write a loss down at the same time.
std::uint64_t listed_in(const os::LossList& list) {
  // atomic_ref wants a mutable object, although it only reads.
  return std::atomic_ref(const_cast<std::uint64_t&>(list.count)).load(std::memory_order_acquire);
}

using namespace std::chrono_literals;

using From = arena::Arrival::From;

std::string path_of(const Identity& identity, Rank rank) {
  return cat(identity.directory, "/rank-", rank, ".arena");
}

std::string path_of_held(const Identity& identity, Rank ward, Rank holder) {
  return cat(identity.directory, "/rank-", ward, ".held-by-", holder);
}

Result<StateFile> state_file(const std::string& path, Version version,
                             std::uint64_t private_bytes) {
  auto departure = arena::departure(path, version, private_bytes);
  if (!departure) return departure.error();
  auto& [file, ranges] = *departure;
  StateFile state{.file = std::move(file.file), .ranges = {}, .size = file.bytes};
  for (const auto& [offset, bytes] : ranges) state.ranges.push_back({offset, bytes});
  return state;
}

struct Privacy {
  Secrecy secrecy = Secrecy::kShared;
  std::uint64_t common_bytes = 0;
  std::uint64_t private_bytes = 0;  // All private bytes of the layout.

  // How many of the first private bytes of a version are copied from any rank. A rank that has lost
  // the others gets them from its holder.
  [[nodiscard]] std::uint64_t shared_bytes(Version version) const {
    if (secrecy == Secrecy::kOwn) return version == 0 ? 0 : common_bytes;
    return secrecy == Secrecy::kShared || version == 0 ? private_bytes : 0;
  }
};

class ArenaStore final : public StateStore {
 public:
  ArenaStore(Worker& worker, Identity identity, arena::Arena arena, Privacy privacy)
      : worker_(worker),
        identity_(std::move(identity)),
        arena_(std::move(arena)),
        privacy_(privacy) {
    open_held();
    updated_at_ = listed_in(arena_.losses()) > 0 ? kNoVersion : arena_.version();
    worker_.neighbours().serve_state([identity = identity_, privacy](Rank rank, Version version) {
      const Rank me = identity.rank;
      return state_file(rank == me ? path_of(identity, me) : path_of_held(identity, rank, me),
                        version, privacy.shared_bytes(version));
    });
  }
  ~ArenaStore() override { worker_.neighbours().serve_state(nullptr); }

  [[nodiscard]] arena::Arena& arena() { return arena_; }

  [[nodiscard]] Holding holding() const override {
    Holding holding{arena_.version(), arena_.staged(), privacy_.secrecy != Secrecy::kShared, {}};
    for (const auto& [ward, held] : held_) {
      if (!held.fresh()) holding.held.push_back({ward, held.version(), held.staged()});
    }
    const arena::Damage damage = this->damage();
    holding.has_lost_shared = !damage.shared.empty();
    holding.has_lost_private = damage.is_private;
    return holding;
  }
  [[nodiscard]] Losses look_for_losses(bool was_used) override {
    const std::uint64_t all = os::pages_lost();
    Losses losses{.pages = all - std::exchange(pages_, all)};
    if (losses.pages > 0 && !was_used && only_committed(waiting_ + losses.pages)) {
      waiting_ += losses.pages;
      losses.can_wait = true;
    } else if (losses.pages > 0 || (was_used && waiting_ > 0)) {
      losses.pages += std::exchange(waiting_, 0);
      if (!arena_.fresh()) arena_.unstage();
      std::erase_if(held_, [](const auto& entry) {
        if (listed_in(entry.second.losses()) == 0) return false;
        ::unlink(entry.second.path().c_str());
        return true;
      });
    }
    const std::uint64_t listed = listed_in(arena_.losses());
    if (listed > 0 && !damage().any() && arena_.staged() == arena_.version()) {
      arena_.clear_losses(listed);
    }
    if (listed_in(arena_.losses()) == 0) {
      updated_at_ = arena_.version();
      waiting_ = 0;
    }
    return losses;
  }
  [[nodiscard]] Status begin(const arena::Position& position) override {
    if (arena_.fresh()) arena_.begin_version0(position);
    return {};
  }
  [[nodiscard]] Result<Received> receive(const wire::Order& order, Version version) override {
    if (const auto lost = damage(); can_repair(lost, order, version)) {
      arena::Arrival arrival(arena_, version, 0);
      const Status repaired = arrival.repair(path_of(identity_, order.source.holder), lost);
      if (!repaired) return repaired.error();
      return Received{.bytes = arrival.bytes(), .is_of_pages = true};
    }
    auto received = receive_all(order, version);
    has_remains_ = !received && arena_.fresh();
    is_copy_ = !arena_.layout().parameters.empty() || privacy_.shared_bytes(version) > 0;
    return received;
  }
  [[nodiscard]] bool is_copy() const override { return is_copy_; }
  [[nodiscard]] bool has_remains() const override { return has_remains_; }
  void clear() override {
    const auto zero = [](auto numbers) { std::fill(numbers.begin(), numbers.end(), 0); };
    zero(arena_.parameters());
    for (std::size_t k = 0; k < arena::moment_count(arena_.layout().optimizer); ++k) {
      zero(arena_.moments(k));
    }
    arena_.clear_private();
    has_remains_ = false;
  }
  void stage(Version n, const arena::StagedStep& step) override { arena_.stage(n, step); }
  void unstage() override {
    arena_.unstage();
    settle();
  }
  void update(std::size_t threads) override {
    arena_.update(threads);
    is_copy_ = false;
    std::erase_if(held_, [this](const auto& entry) {
      const arena::Arena& held = entry.second;
      if (held.staged() == arena_.version()) return false;
      ::unlink(held.path().c_str());
      return true;
    });
    settle();
  }
  void finish() override {
    arena_.finish();
    settle();
  }

  [[nodiscard]] Status show(const std::string& path) override {
    auto departure =
        arena::departure(arena_.path(), arena_.version(), arena_.layout().private_bytes);
    if (!departure) return departure.error();
    const auto there = os::map_file(departure->file, os::Access::kRead, arena_.path());
    if (!there) return there.error();
    // Room for this file, for the arena of the process that reads it, and as much again for all
    // others.
    if (os::free_bytes(identity_.directory) < 4 * departure->file.bytes) {
      return Error{Blame::kWorld, cat("there is too little room for a copy of ", arena_.path())};
    }
    auto file = os::open_own_file(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC);
    if (!file) return file.error();
    const auto failed = [&path] {
      const Error error = os::system_error(cat("cannot write ", path), errno);
      ::unlink(path.c_str());
      return error;
    };
    const auto size = static_cast<off_t>(departure->file.bytes);
    if (::ftruncate(file->get(), size) != 0) return failed();
    const std::uint64_t own = arena_.layout().private_offset(arena_.version() % 2);
    std::vector<arena::Range> ranges = std::move(departure->ranges);
    std::erase_if(ranges, [own](const arena::Range& range) { return range.offset == own; });
    for (const auto& [offset, bytes] : arena_.used(arena_.version())) {
      ranges.push_back({own + offset, bytes});
    }
    for (const auto& [offset, bytes] : ranges) {
      if (::lseek(file->get(), static_cast<off_t>(offset), SEEK_SET) < 0) return failed();
      const char* from = reinterpret_cast<const char*>(there->at(offset));
      if (!os::write_all(file->get(), {from, bytes})) return failed();
    }
    return {};
  }

  [[nodiscard]] bool is_in_place() const override {
    return ::access(arena_.path().c_str(), F_OK) == 0;
  }
  [[nodiscard]] Keeping keep(const std::string& path) override {
    return [this, part = ArenaPart::of(arena_, part_options(arena_.version())), path]() -> Status {
      if (!part) return part.error();
      if (Status written = part->write(path); !written) return written;
      if (arena_.losses().count == 0) return {};
      ::unlink(path.c_str());
      return Error{Blame::kWorld, "memory errors have taken pages of the state"};
    };
  }
  [[nodiscard]] Result<Received> load(const std::string& dir, const std::string& name,
                                      Version version) override {
    forget_held();
    auto loaded = load_parts(arena_, part_options(version), version, dir, name);
    if (!loaded) {
      arena_.invalidate();
      return loaded.error();
    }
    is_copy_ = has_remains_ = false;
    // Whoever makes a last snapshot then knows that this version is on the disk.
    const std::string record = cat(identity_.directory, '/', loaded_file(identity_.rank));
    if (!os::write_file_atomically(record, name)) ::unlink(record.c_str());
    return Received{.bytes = *loaded};
  }

  void forget_held() override {
    for (const auto& [ward, held] : held_) ::unlink(held.path().c_str());
    held_.clear();
  }
  [[nodiscard]] std::uint64_t own_bytes() const override {
    return arena_.layout().private_bytes - privacy_.common_bytes;
  }
  [[nodiscard]] std::vector<OwnPart> own_parts(Version version) override {
    const auto own = arena_.private_bytes(version).subspan(privacy_.common_bytes);
    std::vector<OwnPart> parts;
    for (const auto& [offset, bytes] : arena_.used(version)) {
      const std::uint64_t from = std::max(offset, privacy_.common_bytes);
      const std::uint64_t to = offset + bytes;
      const std::uint64_t at = from - privacy_.common_bytes;
      if (from < to) parts.push_back({at, own.subspan(at, to - from)});
    }
    return parts;
  }
  [[nodiscard]] Result<arena::Arena*> hold_for(Rank ward, std::uint64_t bytes) override {
    const auto found = held_.find(ward);
    if (found != held_.end() && found->second.layout().private_bytes == bytes) {
      return &found->second;
    }
    if (found != held_.end()) held_.erase(found);
    const std::string path = path_of_held(identity_, ward, identity_.rank);
    ::unlink(path.c_str());  // Removes whatever lies there.
    auto made =
        arena::Arena::open(path, arena::Layout::held_for(ward, bytes), identity_.run_id, nullptr);
    if (!made) return made.error();
    return &held_.emplace(ward, *std::move(made)).first->second;
  }

  [[nodiscard]] std::vector<std::span<std::byte>> replaceable() override {
    std::vector<std::span<std::byte>> all{std::as_writable_bytes(arena_.gradients())};
    if (arena_.fresh()) return all;
    all.push_back(std::as_writable_bytes(arena_.parameters()));
    for (std::size_t k = 0; k < arena::moment_count(arena_.layout().optimizer); ++k) {
      all.push_back(std::as_writable_bytes(arena_.moments(k)));
    }
    const Version version = arena_.version();
    all.push_back(arena_.private_bytes(version).first(privacy_.shared_bytes(version)));
    return all;
  }

  [[nodiscard]] collective::Registered gradients() override {
    collective::Registered registered{
        .files = {},
        .offset = arena_.layout().gradients_offset(),
        .bytes = arena_.layout().gradients_bytes(),
        .memory = reinterpret_cast<std::byte*>(arena_.gradients().data())};
    for (Rank rank = 0; rank < identity_.world_size; ++rank) {
      registered.files.push_back(path_of(identity_, rank));
    }
    return registered;
  }

 private:
  [[nodiscard]] PartOptions part_options(Version version) const {
    return {.rank = identity_.rank,
            .workers = identity_.world_size,
            .shared_bytes = privacy_.shared_bytes(version)};
  }
  [[nodiscard]] arena::Damage damage() const {
    return arena::damage_of(arena_, privacy_.shared_bytes(arena_.fresh() ? 0 : arena_.version()),
                            updated_at_ != arena_.version());
  }
  // Whether `pages` pages are lost in all, and all are of the committed private bytes.
  [[nodiscard]] bool only_committed(std::uint64_t pages) const {
    const arena::Layout& layout = arena_.layout();
    const os::LossList list = arena::losses_of(arena_);
    if (arena_.fresh() || !list.is_whole()) return false;
    const std::uint64_t begin = layout.private_offset(arena_.version() % 2);
    std::uint64_t bytes = 0;
    for (const auto& [offset, size] : list.all()) {
      const std::uint64_t at = layout.gradients_offset() + offset;
      if (at < begin || at - begin >= layout.private_bytes || size > os::kPage) return false;
      bytes += size;
    }
    return bytes == pages * os::kPage;
  }
  [[nodiscard]] bool can_repair(const arena::Damage& lost, const wire::Order& order,
                                Version version) const {
    return lost.any() && !lost.is_private && arena_.version() == version && !order.moved &&
           order.source.endpoint.empty() && order.private_source.holder == kNoRank;
  }
  [[nodiscard]] Result<Received> receive_all(const wire::Order& order, Version version) {
    const Rank me = identity_.rank;
    const wire::Location& source = order.source;
    const wire::Location& held = order.private_source;
    const bool has_held = held.holder != kNoRank;
    const std::uint64_t shared =
        worker_.rehearsal() != nullptr ? privacy_.private_bytes : privacy_.shared_bytes(version);
    arena::Arrival arrival(arena_, version, shared, has_held ? me : kNoRank);
    Sink state(arrival, From::kRank, cat("rank ", source.holder, "'s arena"));
    const Rehearsal* rehearsal = worker_.rehearsal();
    auto came =
        source.endpoint.empty()
            ? arrival.copy(From::kRank, rehearsal != nullptr ? rehearsal->state()
                                                             : path_of(identity_, source.holder))
            : fetch(worker_, source, source.holder, version, state);
    if (!came) return came.error();
    if (has_held) {
      Sink rest(arrival, From::kHolder, cat("what rank ", held.holder, " holds for rank ", me));
      came = held.endpoint.empty()
                 ? arrival.copy(From::kHolder, path_of_held(identity_, me, held.holder))
                 : fetch(worker_, held, me, version, rest);
      if (!came) return came.error();
    }
    if (const auto ended = arrival.end(); !ended) return ended.error();
    return Received{.bytes = arrival.bytes()};
  }

  // Receives one file from another host. The arrival checks the file's head before its digest is
  // known, so a first refusal may be due to damage on the way, and is tried again.
  class Sink final : public StateSink {
   public:
    Sink(arena::Arrival& arrival, From from, std::string name)
        : arrival_(arrival), coming_{.from = from, .name = std::move(name)} {}
    [[nodiscard]] Result<std::span<std::byte>> place(const StateHead& head,
                                                     std::size_t range) override {
      if (range == 0) {
        coming_.file_bytes = head.size;
        coming_.ranges.clear();
        for (const auto& [offset, bytes] : head.ranges) coming_.ranges.push_back({offset, bytes});
      }
      auto placed = arrival_.place(coming_, range);
      refused_ += placed ? 0 : 1;
      if (!placed || range == 0) return placed;
      if (Status taken = arrival_.take(coming_.from, coming_.ranges.at(range)); !taken) {
        refused_ = kMostRefused;
        return taken.error();
      }
      return placed;
    }
    [[nodiscard]] Status came(const StateHead&) override {
      auto seen = arrival_.came(coming_);
      refused_ += seen ? 0 : kMostRefused;
      return seen;
    }
    [[nodiscard]] bool has_refused() const override { return refused_ >= kMostRefused; }

   private:
    static constexpr int kMostRefused = 2;
    arena::Arrival& arrival_;
    arena::Arrival::Coming coming_;
    int refused_ = 0;
  };

  // Opens what this rank's predecessor held for other ranks.
  void open_held() {
    const std::string mine = cat(".held-by-", identity_.rank);
    for (const std::string& name : os::names_in(identity_.directory)) {
      if (!name.starts_with("rank-") || !name.ends_with(mine)) continue;
      auto held = arena::Arena::open_held(cat(identity_.directory, '/', name), identity_.run_id);
      if (!held) continue;  // The file is of another run, or damaged, and counts for nothing.
      const Rank ward = held->layout().ward;
      if (path_of_held(identity_, ward, identity_.rank) != held->path()) continue;
      held_.emplace(ward, *std::move(held));
    }
  }

  void settle() {
    for (auto& [ward, held] : held_) held.settle(arena_.version());
  }

  Worker& worker_;
  Identity identity_;
  std::uint64_t pages_ = os::pages_lost();  // So many were lost when it last looked.
  std::uint64_t waiting_ = 0;               // Of these: Losses::can_wait.
  // The version when there were no losses last: an update since then may have used lost pages.
  Version updated_at_ = kNoVersion;
  bool is_copy_ = false;
  bool has_remains_ = false;
  arena::Arena arena_;
  const Privacy privacy_;
  std::map<Rank, arena::Arena> held_;  // By ward.
};

}  // namespace

OpenStore in_arena(arena::Layout layout, Secrecy secrecy, std::uint64_t common_bytes,
                   std::unique_ptr<os::Unnamed> prepared, arena::Memory memory) {
  const Privacy privacy{secrecy, common_bytes, layout.private_bytes};
  // A std::function must be copyable, and a unique_ptr is not.
  const auto shared = std::make_shared<std::unique_ptr<os::Unnamed>>(std::move(prepared));
  return [layout = std::move(layout), privacy, shared, memory](
             Worker& worker, const Identity& identity) -> Result<std::unique_ptr<StateStore>> {
    const std::string path = path_of(identity, identity.rank);
    if (auto taken = take_from_predecessor(worker, path); !taken) return taken.error();
    auto arena = arena::Arena::open(path, layout, identity.run_id, std::move(*shared), memory);
    if (!arena) return arena.error();
    return std::unique_ptr<StateStore>(
        std::make_unique<ArenaStore>(worker, identity, *std::move(arena), privacy));
  };
}

std::unique_ptr<os::Unnamed> prepare_arena(const Worker& worker, const arena::Layout& layout) {
  if (!worker.waits_spare() || !worker.settings().prepare) return nullptr;
  const auto folder = os::runtime_directory(worker.settings().job);
  if (!folder) return nullptr;
  for (const std::string& name : os::names_in(*folder)) {
    // This host's ranks have been on another host since: the arenas left of them need the room.
    if (name.starts_with("rank-") && name.ends_with(".arena")) return nullptr;
  }
  auto made = os::make_unnamed_file(*folder, layout.file_bytes());
  return made ? std::make_unique<os::Unnamed>(*std::move(made)) : nullptr;
}

arena::Arena& arena_of(Session& session) {
  return static_cast<ArenaStore&>(session.store()).arena();
}

}  // namespace holdfast::runtime
