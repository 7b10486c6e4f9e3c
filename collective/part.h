// Part: one rank's side of the operations of a Group, over the memory of one host (HostPart) or
// over that of several hosts and the links between them (SpanPart). Contracts: Group.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "collective/numbers.h"
#include "collective/outcome.h"

namespace holdfast::collective {

// One thread at a time, but for abort(), aborted() and why().
class Part {
 public:
  virtual ~Part() = default;

  virtual Outcome all_reduce(Numbers to, const std::byte* from, Op op) = 0;
  virtual Outcome broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual Outcome all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  virtual Outcome barrier() = 0;
  virtual void abort() = 0;
  virtual void leave() = 0;
  [[nodiscard]] virtual bool aborted() const = 0;
  [[nodiscard]] virtual std::string why() const = 0;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  [[nodiscard]] virtual std::span<std::byte> registered() const = 0;
};

}  // namespace holdfast::collective
