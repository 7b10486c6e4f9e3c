#include "collective/operations.h"

#include <cstring>
#include <utility>

#include "base/text.h"

namespace holdfast::collective {
namespace {

Verdict verdict_of(Outcome outcome, const Group& group) {
  if (outcome == Outcome::kDone) return {};
  if (outcome != Outcome::kAborted) return {outcome, group.why()};
  return {outcome,
          "a process of the job failed before all ranks had done this; the step will be void"};
}

// The block sizes of an all-to-all: what each rank sends and expects, and whether these fit. All
// ranks have the same table, so they come to the same verdict.
struct Sizes {
  std::vector<std::uint64_t> table;
  std::size_t n;
  [[nodiscard]] std::uint64_t sent(std::size_t from, std::size_t to) const {
    return table[from * 2 * n + to];
  }
  [[nodiscard]] std::uint64_t expected(std::size_t at, std::size_t from) const {
    return table[at * 2 * n + n + from];
  }
  [[nodiscard]] Verdict check() const {
    for (std::size_t from = 0; from < n; ++from) {
      for (std::size_t to = 0; to < n; ++to) {
        if (sent(from, to) == expected(to, from)) continue;
        return {Outcome::kMismatch, cat("rank ", from, " sends ", sent(from, to), " bytes to rank ",
                                        to, ", which expects ", expected(to, from),
                                        " (an all-to-all); the sizes of both must be equal")};
      }
    }
    return {};
  }
};

Verdict exchange_sizes(Group& group, const Blocks& send, const Blocks& receive, Sizes& sizes) {
  std::vector<std::uint64_t> mine = send.bytes;
  mine.insert(mine.end(), receive.bytes.begin(), receive.bytes.end());
  sizes.n = send.bytes.size();
  sizes.table.resize(mine.size() * sizes.n);
  const Outcome told = group.all_gather(std::as_bytes(std::span(mine)),
                                        std::as_writable_bytes(std::span(sizes.table)));
  if (told != Outcome::kDone) return verdict_of(told, group);
  return sizes.check();
}

Verdict exchange(Group& group, const Blocks& send, const Blocks& receive, bool same) {
  const auto n = static_cast<std::size_t>(group.world_size());
  const auto me = static_cast<std::size_t>(group.rank());
  Sizes sizes{{}, n};
  if (!same) {
    if (Verdict told = exchange_sizes(group, send, receive, sizes);
        told.outcome != Outcome::kDone) {
      return told;
    }
  }
  const auto sent = [&](std::size_t from, std::size_t to) {
    return same ? send.bytes[to] : sizes.sent(from, to);
  };
  std::vector<std::byte> copy;
  std::byte* to = receive.data;
  for (std::size_t from = 0; from < n; ++from) {
    std::uint64_t total = 0;
    std::uint64_t offset = 0;
    for (std::size_t k = 0; k < n; ++k) {
      if (k == me) offset = total;
      total += sent(from, k);
    }
    copy.resize(total);
    std::byte* data = from == me ? send.data : copy.data();
    const Outcome came = group.broadcast({data, total}, static_cast<int>(from));
    if (came != Outcome::kDone) return verdict_of(came, group);
    if (receive.bytes[from] > 0) std::memcpy(to, data + offset, receive.bytes[from]);
    to += receive.bytes[from];
  }
  return {};
}

Verdict reduce_and_scatter(Group& group, const std::byte* all, const Numbers& mine, Op op) {
  const auto n = static_cast<std::size_t>(group.world_size());
  const auto sums = std::make_unique_for_overwrite<std::byte[]>(n * mine.bytes);
  const Outcome outcome = group.all_reduce({sums.get(), n * mine.count, mine.element}, all, op);
  if (outcome == Outcome::kDone && mine.bytes > 0) {
    const std::byte* ours = sums.get() + static_cast<std::size_t>(group.rank()) * mine.bytes;
    std::memcpy(mine.data, ours, mine.bytes);
  }
  return verdict_of(outcome, group);
}

Status check_peer(const Team& team, int peer, const char* what) {
  if (peer >= 0 && peer < team.size() && peer != team.rank()) return {};
  return Error{Blame::kUser, cat(what, " rank ", peer,
                                 ": it must be another rank of the group, 0 to ", team.size() - 1)};
}

Operation broadcast_of(Team& team, std::span<std::byte> bytes, int root) {
  return {team, [=](Group& g) { return verdict_of(g.broadcast(bytes, root), g); }};
}

}  // namespace

Operation barrier(Team& team) {
  return {team, [](Group& g) { return verdict_of(g.barrier(), g); }};
}

Result<Operation> broadcast(Team& team, std::span<std::byte> bytes, int root) {
  if (root < 0 || root >= team.size()) {
    return Error{Blame::kUser, cat("a broadcast from rank ", root, ": the group has ranks 0 to ",
                                   team.size() - 1)};
  }
  return broadcast_of(team, bytes, root);
}

Operation all_gather(Team& team, std::span<const std::byte> mine, std::byte* all) {
  return {team, [=](Group& g) {
            const auto n = static_cast<std::size_t>(g.world_size());
            return verdict_of(g.all_gather(mine, {all, n * mine.size()}), g);
          }};
}

Result<Operation> all_reduce(Team& team, const void* from, Numbers to, Op op) {
  if (const Status fit = check(to, op); !fit) return fit.error();
  return Operation(team, [=, bytes = static_cast<const std::byte*>(from)](Group& g) {
    return verdict_of(g.all_reduce(to, bytes, op), g);
  });
}

Result<Operation> reduce_scatter(Team& team, const void* all, Numbers mine, Op op) {
  if (const Status fit = check(mine, op); !fit) return fit.error();
  return Operation(team, [=, bytes = static_cast<const std::byte*>(all)](Group& g) {
    return reduce_and_scatter(g, bytes, mine, op);
  });
}

Operation all_to_all(Team& team, Blocks send, Blocks receive, bool same) {
  return {team, [send = std::move(send), receive = std::move(receive), same](Group& g) {
            return exchange(g, send, receive, same);
          }};
}

// A send and its receive are one broadcast from the sender in a team of the two ranks. Rank 0 of
// that team sends.
Result<Operation> send(Team& team, std::span<const std::byte> bytes, int to, unsigned tag) {
  if (const Status good = check_peer(team, to, "a send to"); !good) return good.error();
  return broadcast_of(team.pair(team.rank(), to, tag),
                      {const_cast<std::byte*>(bytes.data()), bytes.size()}, 0);
}

Result<Operation> receive(Team& team, std::span<std::byte> bytes, int from, unsigned tag) {
  if (const Status good = check_peer(team, from, "a receive from"); !good) return good.error();
  return broadcast_of(team.pair(from, team.rank(), tag), bytes, 0);
}

}  // namespace holdfast::collective
