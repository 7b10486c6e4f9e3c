#include "runtime/worker/arena_store.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/text.h"
#include "runtime/worker/ownership.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

std::string path_of(const Identity& identity, Rank rank) {
  return cat(identity.directory, "/rank-", rank, ".arena");
}

class ArenaStore final : public StateStore {
 public:
  ArenaStore(Identity identity, arena::Arena arena, Secrecy secrecy)
      : identity_(std::move(identity)), arena_(std::move(arena)), secrecy_(secrecy) {}

  [[nodiscard]] arena::Arena& arena() { return arena_; }

  [[nodiscard]] Holding holding() const override {
    return {arena_.version(), arena_.staged(), secrecy_ == Secrecy::kOwn};
  }
  void begin(const arena::Position& position) override {
    if (arena_.fresh()) arena_.begin_version0(position);
  }
  [[nodiscard]] Status receive(const wire::Location& source, Version version) override {
    return arena_.copy_from(path_of(identity_, source.holder), version,
                            secrecy_ == Secrecy::kShared);
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
        std::make_unique<ArenaStore>(identity, *std::move(arena), secrecy));
  };
}

arena::Arena& arena_of(Session& session) {
  return static_cast<ArenaStore&>(session.store()).arena();
}

}  // namespace holdfast::runtime
