// Operation: a collective operation of a team, ready to be run or started; and the functions that
// make them. Faces use collectives only through this file.
//
// Data is given as bytes, or as numbers with their type and location. Every rank of the team makes
// the same operations, in the same order, with the same sizes, types and ops. Do not touch the
// memory until the operation has ended; after any outcome but kDone its outputs are undefined.
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
  // Call one of the two, once. Errors: those of Team::run().
  [[nodiscard]] Result<Verdict> run() && { return team_->run(body_); }
  [[nodiscard]] std::shared_ptr<Work> start() && { return team_->start(std::move(body_)); }

  Operation(Team& team, Team::Body body) : team_(&team), body_(std::move(body)) {}

 private:
  Team* team_;
  Team::Body body_;
};

// Errors of all functions below (kUser): arguments that are wrong by themselves, whatever the other
// ranks ask for.

[[nodiscard]] Operation barrier(Team& team);
[[nodiscard]] Result<Operation> broadcast(Team& team, std::span<std::byte> bytes, int root);
// `all`: one block of mine.size() bytes for each rank, in rank order.
[[nodiscard]] Operation all_gather(Team& team, std::span<const std::byte> mine, std::byte* all);

// Reduces all ranks' `from` into `to`. `from` holds as many numbers as `to`, of the same type. The
// two are the same memory, or do not overlap.
[[nodiscard]] Result<Operation> all_reduce(Team& team, const void* from, Numbers to, Op op);
// `all`: one block of mine.count numbers for each rank, in rank order.
[[nodiscard]] Result<Operation> reduce_scatter(Team& team, const void* all, Numbers mine, Op op);

struct Blocks {
  std::byte* data = nullptr;
  std::vector<std::uint64_t> bytes;  // By rank; the blocks lie one after another.
};
// `same`: all blocks of all ranks have the same size, so that the ranks need not exchange sizes.
[[nodiscard]] Operation all_to_all(Team& team, Blocks send, Blocks receive, bool same);

// The n-th send to a rank with some tag meets that rank's n-th receive with the same tag.
[[nodiscard]] Result<Operation> send(Team& team, std::span<const std::byte> bytes, int to,
                                     unsigned tag);
[[nodiscard]] Result<Operation> receive(Team& team, std::span<std::byte> bytes, int from,
                                        unsigned tag);

}  // namespace holdfast::collective
