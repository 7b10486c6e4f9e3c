// Tape: what a rank gave and got in the exchanges of one step. A rank's step is recorded on one,
// and a rehearsal of that step (runtime/worker/rehearsal.h) is played from it, without any other
// rank.
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
  // What all ranks must ask for alike: of a reduction its type and operation, of a broadcast its
  // root. Tells one request from another, and no more.
  std::uint64_t request = 0;
  std::uint64_t given = 0;   // A digest of what this rank gave; 0: nothing.
  std::span<std::byte> got;  // What the exchange brought; its size is known before it is made.
};

// Any thread; exchanges of one group come one at a time.
class Tape {
 public:
  virtual ~Tape() = default;
  // Requires: it is done. `group`: its name; "": the world.
  virtual void record(const std::string& group, const Exchange& exchange) = 0;
  // Fills `got`. kAborted: it was not made in the step that is played.
  virtual Outcome play(const std::string& group, const Exchange& exchange) = 0;
};

// A group whose exchanges are recorded. It lives for one call, and holds on to nothing.
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

// The group of a rehearsal, made of nothing but a tape.
[[nodiscard]] std::shared_ptr<Group> played_group(const Group::Options& options,
                                                  std::shared_ptr<Tape> tape);

}  // namespace holdfast::collective
