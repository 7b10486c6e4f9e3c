#include "runtime/worker/arena_store.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <utility>

#include "base/text.h"
#include "io/loop.h"
#include "os/files.h"
#include "runtime/worker/ownership.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Duration kBetweenFetches = 100ms;

std::string path_of(const Identity& identity, Rank rank) {
  return cat(identity.directory, "/rank-", rank, ".arena");
}

// What another host needs of it: all but the gradients.
Result<StateFile> state_of(const std::string& path, const arena::Layout& layout, Rank me,
                           Rank rank) {
  if (rank != me) {
    return Error{Blame::kPeer, cat("here is the state of rank ", me, ", not of rank ", rank)};
  }
  auto file = os::open_own_file(path, O_RDONLY | O_CLOEXEC);
  if (!file) return file.error();
  if (!*file) return Error{Blame::kWorld, cat("there is no arena ", path)};
  const std::uint64_t size = layout.file_bytes();
  const std::uint64_t behind = layout.parameters_offset();
  StateFile state{
      .file = *std::move(file), .ranges = {{0, layout.gradients_offset()}}, .size = size};
  if (behind < size) state.ranges.push_back({behind, size - behind});
  return state;
}

class ArenaStore final : public StateStore {
 public:
  ArenaStore(Worker& worker, Identity identity, arena::Arena arena, Secrecy secrecy)
      : worker_(worker),
        identity_(std::move(identity)),
        arena_(std::move(arena)),
        secrecy_(secrecy) {
    worker_.neighbours().serve_state(
        [path = arena_.path(), layout = arena_.layout(), me = identity_.rank](Rank rank, Version) {
          return state_of(path, layout, me, rank);
        });
  }
  ~ArenaStore() override { worker_.neighbours().serve_state(nullptr); }

  [[nodiscard]] arena::Arena& arena() { return arena_; }

  [[nodiscard]] Holding holding() const override {
    return {arena_.version(), arena_.staged(), secrecy_ != Secrecy::kShared};
  }
  void begin(const arena::Position& position) override {
    if (arena_.fresh()) arena_.begin_version0(position);
  }
  [[nodiscard]] Status receive(const wire::Location& source, Version version) override {
    // Where they are each rank's own later, a plan for a later version never has a rank receive
    // that has lost them.
    const bool with_private =
        secrecy_ == Secrecy::kShared || (secrecy_ == Secrecy::kOwnLater && version == 0);
    if (source.endpoint.empty()) {
      return arena_.copy_from(path_of(identity_, source.holder), version, with_private);
    }
    // It comes from another host as a file of its own, so that it is checked like one of this host.
    const std::string received = arena_.path() + ".received";
    if (auto came = fetch(source, version, received); !came) return came;
    auto copied = arena_.copy_from(received, version, with_private);
    std::filesystem::remove(received);
    return copied;
  }
  void stage(Version n, const arena::StagedStep& step) override { arena_.stage(n, step); }
  void unstage() override { arena_.unstage(); }
  void update(std::size_t threads) override { arena_.update(threads); }
  void finish() override { arena_.finish(); }

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
  // Tries again until it comes, or is wanted no more. Its host may be lost: then this repair is
  // stopped.
  [[nodiscard]] Status fetch(const wire::Location& source, Version version,
                             const std::string& path) {
    Neighbours& neighbours = worker_.neighbours();
    const Instant end = io::Loop::now() + worker_.settings().replacement_timeout;
    for (;;) {
      auto came = neighbours.fetch_state(source, version, path);
      if (came || neighbours.is_repair_stopped() || io::Loop::now() >= end) return came;
      if (const auto paused = worker_.pause(kBetweenFetches); !paused) return paused;
    }
  }

  Worker& worker_;
  Identity identity_;
  arena::Arena arena_;
  Secrecy secrecy_;
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

OpenStore in_arena(arena::Layout layout, Secrecy secrecy) {
  return [layout = std::move(layout), secrecy](
             Worker& worker, const Identity& identity) -> Result<std::unique_ptr<StateStore>> {
    const std::string path = path_of(identity, identity.rank);
    if (auto taken = take(worker, path); !taken) return taken.error();
    auto arena = arena::Arena::open(path, layout, identity.run_id);
    if (!arena) return arena.error();
    return std::unique_ptr<StateStore>(
        std::make_unique<ArenaStore>(worker, identity, *std::move(arena), secrecy));
  };
}

arena::Arena& arena_of(Session& session) {
  return static_cast<ArenaStore&>(session.store()).arena();
}

}  // namespace holdfast::runtime
