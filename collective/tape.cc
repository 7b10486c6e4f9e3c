#include "collective/tape.h"

#include <atomic>
#include <utility>

#include "base/digest.h"

namespace holdfast::collective {
namespace {

// Made before the exchange, which may overwrite `from`.
Exchange reduction(const Numbers& to, const std::byte* from, Op op) {
  return {.kind = ExchangeKind::kReduction,
          .request = static_cast<std::uint64_t>(to.element) << 8U | static_cast<std::uint64_t>(op),
          .given = digest({from, to.bytes}),
          .got = {to.data, to.bytes}};
}

Exchange broadcast_of(std::span<std::byte> bytes, int root, int me) {
  return {.kind = ExchangeKind::kBroadcast,
          .request = static_cast<std::uint64_t>(root),
          .given = root == me ? digest(bytes) : 0,
          .got = bytes};
}

Exchange gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  return {.kind = ExchangeKind::kGather, .request = 0, .given = digest(mine), .got = all};
}

class PlayedGroup final : public Group {
 public:
  PlayedGroup(const Options& options, std::shared_ptr<Tape> tape)
      : name_(options.group),
        rank_(options.rank),
        size_(options.world_size),
        registered_(options.registered.memory, options.registered.bytes),
        tape_(std::move(tape)) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return size_; }
  [[nodiscard]] std::span<std::byte> registered() const override { return registered_; }
  Outcome all_reduce(Numbers to, const std::byte* from, Op op) override {
    return play(reduction(to, from, op));
  }
  Outcome broadcast(std::span<std::byte> bytes, int root) override {
    return play(broadcast_of(bytes, root, rank_));
  }
  Outcome all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    return play(gather(mine, all));
  }
  Outcome barrier() override { return play({}); }
  void abort() override { is_aborted_ = true; }
  [[nodiscard]] bool aborted() const override { return is_aborted_; }
  void leave() override {}
  [[nodiscard]] std::string why() const override { return ""; }

 private:
  Outcome play(const Exchange& exchange) {
    return is_aborted_ ? Outcome::kAborted : tape_->play(name_, exchange);
  }
  const std::string name_;
  const int rank_;
  const int size_;
  const std::span<std::byte> registered_;
  const std::shared_ptr<Tape> tape_;
  std::atomic<bool> is_aborted_ = false;
};

}  // namespace

const char* name(ExchangeKind kind) {
  constexpr const char* kNames[] = {"reduction", "broadcast", "gather", "barrier"};
  return kNames[static_cast<std::size_t>(kind)];
}

Outcome RecordedGroup::note(Outcome outcome, const Exchange& exchange) {
  if (outcome == Outcome::kDone) tape_.record(name_, exchange);
  return outcome;
}
Outcome RecordedGroup::all_reduce(Numbers to, const std::byte* from, Op op) {
  const Exchange exchange = reduction(to, from, op);
  return note(group_.all_reduce(to, from, op), exchange);
}
Outcome RecordedGroup::broadcast(std::span<std::byte> bytes, int root) {
  const Exchange exchange = broadcast_of(bytes, root, rank());
  return note(group_.broadcast(bytes, root), exchange);
}
Outcome RecordedGroup::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  const Exchange exchange = gather(mine, all);
  return note(group_.all_gather(mine, all), exchange);
}
Outcome RecordedGroup::barrier() {
  return note(group_.barrier(), {});
}

std::shared_ptr<Group> played_group(const Group::Options& options, std::shared_ptr<Tape> tape) {
  return std::make_shared<PlayedGroup>(options, std::move(tape));
}

}  // namespace holdfast::collective
