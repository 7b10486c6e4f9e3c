// Operation: something that a team does, ready to be run or started; and all that there are.
//
// This is the one interface of the library for faces. What is exchanged is typed by bytes, or by
// elements and the location where they lie. Every rank of the team makes the same operations, in
// the same order, with the same sizes, types and ops. The memory is the operation's until it has
// ended; after any outcome but kDone what it writes is undefined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "collective/group.h"
#include "collective/numbers.h"
#include "collective/team.h"

namespace holdfast::collective {

class Operation {
 public:
  // Both ask for it once. Errors: those of Team::run().
  [[nodiscard]] Result<Verdict> run() && { return team_->run(body_); }
  [[nodiscard]] std::shared_ptr<Work> start() && { return team_->start(std::move(body_)); }

  Operation(Team& team, Team::Body body) : team_(&team), body_(std::move(body)) {}

 private:
  Team* team_;
  Team::Body body_;
};

// Errors of all (kUser): arguments that no rank could serve.

[[nodiscard]] Operation barrier(Team& team);
[[nodiscard]] Result<Operation> broadcast(Team& team, std::span<std::byte> bytes, int root);
// `all`: of as many bytes for each rank as `mine` has, in rank order.
[[nodiscard]] Operation all_gather(Team& team, std::span<const std::byte> mine, std::byte* all);

// Reduces what all give in `from`, which holds as many numbers as `to`, into `to`. The two are the
// same memory, or do not overlap.
[[nodiscard]] Result<Operation> all_reduce(Team& team, const void* from, Numbers to, Op op);
// `all`: as many numbers for each rank as `mine` has, in rank order.
[[nodiscard]] Result<Operation> reduce_scatter(Team& team, const void* all, Numbers mine, Op op);

struct Blocks {
  std::byte* data = nullptr;
  std::vector<std::uint64_t> bytes;  // By rank; the blocks lie one after another.
};
// `same`: every rank knows that all blocks have the same size. Then they need not tell each other.
[[nodiscard]] Operation all_to_all(Team& team, Blocks send, Blocks receive, bool same);

// Between two ranks of the team, in the order of the calls with this tag.
[[nodiscard]] Result<Operation> send(Team& team, std::span<const std::byte> bytes, int to,
                                     unsigned tag);
[[nodiscard]] Result<Operation> receive(Team& team, std::span<std::byte> bytes, int from,
                                        unsigned tag);

}  // namespace holdfast::collective
