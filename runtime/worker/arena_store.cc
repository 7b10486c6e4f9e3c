#include "runtime/worker/arena_store.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "arena/arrival.h"
#include "arena/private_copy.h"
#include "base/text.h"
#include "io/loop.h"
#include "os/files.h"
#include "os/host.h"
#include "runtime/worker/ownership.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Duration kBetweenFetches = 100ms;

std::string path_of(const Identity& identity, Rank rank) {
  return cat(identity.directory, "/rank-", rank, ".arena");
}

std::string path_of_held(const Identity& identity, Rank ward, Rank holder) {
  return cat(identity.directory, "/rank-", ward, ".held-by-", holder);
}

Result<os::Fd> open_to_send(const std::string& path) {
  auto file = os::open_own_file(path, O_RDONLY | O_CLOEXEC);
  if (file && !*file) return Error{Blame::kWorld, cat("there is no ", path)};
  return file;
}

StateFile state_file(os::Fd file, const std::vector<arena::Range>& ranges, std::uint64_t size) {
  StateFile state{.file = std::move(file), .ranges = {}, .size = size};
  for (const auto& [offset, bytes] : ranges) state.ranges.push_back({offset, bytes});
  return state;
}

// What another host needs of this rank's state: no gradients, and of the private part at most what
// that version has.
Result<StateFile> own_state(const std::string& path, const arena::Layout& layout,
                            std::uint64_t private_bytes, Version version) {
  auto file = open_to_send(path);
  if (!file) return file.error();
  return state_file(*std::move(file), arena::ranges_to_copy(layout, version, private_bytes),
                    layout.file_bytes());
}

// What this rank holds for a rank of another host.
Result<StateFile> held_state(const std::string& path, std::uint64_t run_id, Version version) {
  auto held = arena::PrivateCopy::open(path, run_id, os::Access::kRead);
  if (!held) return held.error();
  if (!held->has(version)) {
    return Error{Blame::kPeer, cat(path, " does not hold version ", version)};
  }
  auto file = open_to_send(path);
  if (!file) return file.error();
  return state_file(*std::move(file), held->facts().ranges_to_copy(version), held->file_bytes());
}

struct Privacy {
  Secrecy secrecy = Secrecy::kShared;
  std::uint64_t common_bytes = 0;
  std::uint64_t private_bytes = 0;  // Of the layout.

  // How many of the first private bytes of a version come along from any rank. A plan has a holder
  // for the others of a rank that has lost them.
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
    worker_.neighbours().serve_state([identity = identity_, path = arena_.path(),
                                      layout = arena_.layout(),
                                      privacy](Rank rank, Version version) {
      return rank == identity.rank ? own_state(path, layout, privacy.shared_bytes(version), version)
                                   : held_state(path_of_held(identity, rank, identity.rank),
                                                identity.run_id, version);
    });
  }
  ~ArenaStore() override { worker_.neighbours().serve_state(nullptr); }

  [[nodiscard]] arena::Arena& arena() { return arena_; }

  [[nodiscard]] Holding holding() const override {
    Holding holding{arena_.version(), arena_.staged(), privacy_.secrecy != Secrecy::kShared, {}};
    for (const auto& [ward, copy] : held_) {
      if (copy.version() == kNoVersion) continue;
      holding.held.push_back({ward, copy.version(), copy.staged()});
    }
    return holding;
  }
  void begin(const arena::Position& position) override {
    if (arena_.fresh()) arena_.begin_version0(position);
  }
  [[nodiscard]] Status receive(const wire::Order& order, Version version) override {
    const Status received = receive_all(order, version);
    has_remains_ = !received && arena_.fresh();
    return received;
  }
  [[nodiscard]] bool has_remains() const override { return has_remains_; }
  void clear() override {
    const auto zero = [](auto numbers) { std::fill(numbers.begin(), numbers.end(), 0); };
    zero(arena_.parameters());
    for (std::size_t k = 0; k < arena::moment_count(arena_.layout().optimizer); ++k) {
      zero(arena_.moments(k));
    }
    for (const Version place : {Version{0}, Version{1}}) {
      const auto bytes = arena_.private_bytes(place);
      std::fill(bytes.begin(), bytes.end(), std::byte{});
    }
    has_remains_ = false;
  }
  void stage(Version n, const arena::StagedStep& step) override {
    used_of_ = n;
    used_.assign(step.used.begin(), step.used.end());
    arena_.stage(n, step);
  }
  void unstage() override {
    arena_.unstage();
    settle();
  }
  void update(std::size_t threads) override {
    arena_.update(threads);
    std::erase_if(held_, [this](const auto& entry) {
      const arena::PrivateCopy& copy = entry.second;
      if (copy.staged() == arena_.version()) return false;
      ::unlink(copy.path().c_str());
      return true;
    });
    settle();
  }
  void finish() override {
    arena_.finish();
    settle();
  }

  void forget_held() override {
    for (const auto& [ward, copy] : held_) ::unlink(copy.path().c_str());
    held_.clear();
  }
  [[nodiscard]] std::uint64_t own_bytes() const override {
    return arena_.layout().private_bytes - privacy_.common_bytes;
  }
  [[nodiscard]] std::vector<OwnPart> own_parts(Version version) override {
    const auto own = arena_.private_bytes(version).subspan(privacy_.common_bytes);
    if (used_.empty() || used_of_ != version) return {{0, own}};
    std::vector<OwnPart> parts;
    for (const auto& [offset, bytes] : used_) {
      const std::uint64_t from = std::max(offset, privacy_.common_bytes);
      const std::uint64_t to = offset + bytes;
      const std::uint64_t at = from - privacy_.common_bytes;
      if (from < to) parts.push_back({at, own.subspan(at, to - from)});
    }
    return parts;
  }
  [[nodiscard]] Result<arena::PrivateCopy*> hold_for(Rank ward, std::uint64_t bytes) override {
    const auto found = held_.find(ward);
    if (found != held_.end() && found->second.bytes() == bytes) return &found->second;
    if (found != held_.end()) held_.erase(found);
    auto made = arena::PrivateCopy::make(path_of_held(identity_, ward, identity_.rank),
                                         identity_.run_id, ward, bytes);
    if (!made) return made.error();
    return &held_.emplace(ward, *std::move(made)).first->second;
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
  [[nodiscard]] Status receive_all(const wire::Order& order, Version version) {
    const wire::Location& source = order.source;
    const wire::Location& held = order.private_source;
    const bool has_held = held.holder != kNoRank;
    arena::Arrival arrival(arena_, version, privacy_.shared_bytes(version), has_held);
    Sink state(arrival, kNoRank, cat("rank ", source.holder, "'s arena"));
    auto came = source.endpoint.empty() ? arrival.copy(path_of(identity_, source.holder))
                                        : fetch(source, source.holder, version, state);
    if (!came) return came;
    if (has_held) {
      const Rank me = identity_.rank;
      Sink rest(arrival, me, cat("what rank ", held.holder, " holds for rank ", me));
      came = held.endpoint.empty() ? copy_held(arrival, path_of_held(identity_, me, held.holder))
                                   : fetch(held, me, version, rest);
      if (!came) return came;
    }
    return arrival.end();
  }

  // Of one file that comes from another host: a rank's arena, or what is held for `ward`. What it
  // begins with is judged before its digest is known, so that may be damage on the way: once.
  class Sink final : public StateSink {
   public:
    Sink(arena::Arrival& arrival, Rank ward, std::string from)
        : arrival_(arrival), ward_(ward), coming_{.from = std::move(from)} {}
    [[nodiscard]] Result<std::span<std::byte>> place(const StateHead& head,
                                                     std::size_t range) override {
      if (range == 0) {
        coming_.file_bytes = head.size;
        coming_.ranges.clear();
        for (const auto& [offset, bytes] : head.ranges) coming_.ranges.push_back({offset, bytes});
      }
      auto placed = ward_ == kNoRank ? arrival_.place(coming_, range)
                                     : arrival_.place_held(coming_, range, ward_);
      refused_ += placed ? 0 : 1;
      return placed;
    }
    [[nodiscard]] Status came(const StateHead&) override {
      auto seen = ward_ == kNoRank ? arrival_.came(coming_) : arrival_.came_held(coming_, ward_);
      refused_ += seen ? 0 : kMostRefused;
      return seen;
    }
    // What came was not what is expected: no further try would change that.
    [[nodiscard]] bool has_refused() const { return refused_ >= kMostRefused; }

   private:
    static constexpr int kMostRefused = 2;
    arena::Arrival& arrival_;
    const Rank ward_;  // kNoRank: it is an arena.
    arena::Arrival::Coming coming_;
    int refused_ = 0;
  };

  // What its predecessor held for others.
  void open_held() {
    const std::string mine = cat(".held-by-", identity_.rank);
    for (const std::string& name : os::names_in(identity_.directory)) {
      if (!name.starts_with("rank-") || !name.ends_with(mine)) continue;
      auto copy = arena::PrivateCopy::open(cat(identity_.directory, '/', name), identity_.run_id);
      if (!copy) continue;  // Of another run, or damaged: nothing is held then.
      const Rank ward = copy->ward();
      if (!path_of_held(identity_, ward, identity_.rank).ends_with(cat('/', name))) continue;
      held_.emplace(ward, *std::move(copy));
    }
  }

  void settle() {
    for (auto& [ward, copy] : held_) copy.settle(arena_.version());
  }

  // Of this host.
  [[nodiscard]] Status copy_held(arena::Arrival& arrival, const std::string& path) const {
    const auto held = arena::PrivateCopy::open(path, identity_.run_id, os::Access::kRead);
    if (!held) return held.error();
    if (held->ward() != identity_.rank) {
      return Error{Blame::kPeer, cat(path, " is of rank ", held->ward())};
    }
    return arrival.copy_held(*held);
  }

  // What `rank` has at `source`. Tries again until it comes, or is wanted no more. Its host may be
  // lost: then this repair is stopped.
  [[nodiscard]] Status fetch(const wire::Location& source, Rank rank, Version version, Sink& sink) {
    Neighbours& neighbours = worker_.neighbours();
    const Instant end = io::Loop::now() + worker_.settings().replacement_timeout;
    for (;;) {
      const auto came = neighbours.fetch_state(source, rank, version, sink);
      if (came || sink.has_refused()) return came;
      if (neighbours.is_repair_stopped() || io::Loop::now() >= end) return came;
      if (const auto paused = worker_.pause(kBetweenFetches); !paused) return paused;
    }
  }

  Worker& worker_;
  Identity identity_;
  bool has_remains_ = false;
  arena::Arena arena_;
  const Privacy privacy_;
  std::map<Rank, arena::PrivateCopy> held_;  // By ward.
  Version used_of_ = kNoVersion;             // Of which version this is known:
  std::vector<arena::Range> used_;           // StagedStep::used.
};

// A world of its own has its arena for itself.
Status take(Worker& worker, const std::string& path) {
  if (worker.solo()) return {};
  // Its predecessor's threads mostly need a moment only, to get a processor to die on.
  const auto pause = [&worker, wait = Duration(100us)]() mutable -> Status {
    return worker.pause(std::exchange(wait, std::min<Duration>(2 * wait, 2ms)));
  };
  return take_ownership(path, pause, worker.settings().replacement_timeout);
}

}  // namespace

OpenStore in_arena(arena::Layout layout, Secrecy secrecy, std::uint64_t common_bytes,
                   std::unique_ptr<os::Unnamed> prepared) {
  const Privacy privacy{secrecy, common_bytes, layout.private_bytes};
  // std::function wants what can be copied.
  const auto shared = std::make_shared<std::unique_ptr<os::Unnamed>>(std::move(prepared));
  return [layout = std::move(layout), privacy, shared](
             Worker& worker, const Identity& identity) -> Result<std::unique_ptr<StateStore>> {
    const std::string path = path_of(identity, identity.rank);
    if (auto taken = take(worker, path); !taken) return taken.error();
    auto arena = arena::Arena::open(path, layout, identity.run_id, std::move(*shared));
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
    // Its ranks were elsewhere meanwhile: what is left of them needs the room.
    if (name.starts_with("rank-") && name.ends_with(".arena")) return nullptr;
  }
  auto made = os::make_unnamed_file(*folder, layout.file_bytes());
  return made ? std::make_unique<os::Unnamed>(*std::move(made)) : nullptr;
}

arena::Arena& arena_of(Session& session) {
  return static_cast<ArenaStore&>(session.store()).arena();
}

}  // namespace holdfast::runtime
