// Tape: what a rank gave and got in the exchanges of one step. A rank records a step on a tape. A
// rehearsal of that step (runtime/worker/rehearsal.h) is played from the tape, without other ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "collective/group.h"

namespace holdfast::collective {

enum class ExchangeKind : std::uint8_t { kReduction, kBroadcast, kGather, kBarrier };
[[nodiscard]] const char* name(ExchangeKind kind);

struct Exchange {
  ExchangeKind kind = ExchangeKind::kBarrier;
  // Tells different requests of the same kind apart. For a reduction: the element and the op. For a
  // broadcast: the root.
  std::uint64_t request = 0;
  std::uint64_t given = 0;   // A digest of what this rank gave; 0: nothing.
  std::span<std::byte> got;  // What the exchange brought; its size is known before it is made.
};

// Any thread; exchanges of one group come one at a time.
class Tape {
 public:
  virtual ~Tape() = default;
  // Requires: the exchange has ended with kDone. `group`: the group's name; "": the world.
  virtual void record(const std::string& group, const Exchange& exchange) = 0;
  // Fills `got`. kAborted: the recorded step made no such exchange.
  virtual Outcome play(const std::string& group, const Exchange& exchange) = 0;
};

// Wraps a group and records its exchanges. It lives for one call only, and owns nothing.
class RecordedGroup final : public Group {
 public:
  RecordedGroup(Group& group, const std::string& name, Tape& tape)
      : group_(group), name_(name), tape_(tape) {}

  [[nodiscard]] int rank() const override { return group_.rank(); }
  [[nodiscard]] int world_size() const override { return group_.world_size(); }
  [[nodiscard]] std::span<std::byte> registered() const override { return group_.registered(); }
  Outcome all_reduce(Numbers to, const std::byte* from, Op op) override;
  Outcome broadcast(std::span<std::byte> bytes, int root) override;
  Outcome all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  Outcome barrier() override;
  void abort() override { group_.abort(); }
  [[nodiscard]] bool aborted() const override { return group_.aborted(); }
  void leave() override { group_.leave(); }
  [[nodiscard]] std::string why() const override { return group_.why(); }

 private:
  Outcome note(Outcome outcome, const Exchange& exchange);
  Group& group_;
  const std::string& name_;
  Tape& tape_;
};

// The group of a rehearsal: it takes all results from the tape.
[[nodiscard]] std::shared_ptr<Group> played_group(const Group::Options& options,
                                                  std::shared_ptr<Tape> tape);

}  // namespace holdfast::collective
