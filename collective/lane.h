// Lane: this rank's work in the large operations of a SpanPart. If the rank leads a lane (SpanMap),
// it moves the lane's pieces over its hops, the links to the lane's ranks on other hosts. If it
// leads none, it has nothing to move.
//
// It knows SpanStop, which ends an operation early.
#pragma once

#include <poll.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "collective/links.h"
#include "collective/pumps.h"
#include "collective/span_map.h"
#include "collective/span_stop.h"
#include "os/pool.h"

namespace holdfast::collective {

class Lane {
 public:
  // `half_bytes`: the size of each half of a window. Requires: `map` and `stop` outlive the lane.
  Lane(const SpanMap& map, std::size_t half_bytes, SpanStop& stop);

  // `hops`: by hop; null: this rank is no end of it.
  void use(std::vector<Link*> hops);

  // The bytes that go through the windows at a time: a whole number of pieces.
  [[nodiscard]] std::size_t portion_bytes() const { return portion_bytes_; }
  // Bytes [begin, begin + bytes) of an operation's `total`.
  [[nodiscard]] Pieces pieces(std::size_t total, std::size_t begin, std::size_t bytes) const;

  // Both return once this lane's pieces are done. False: the operation was stopped before.
  [[nodiscard]] bool reduce(const Chain::Terms& terms);
  [[nodiscard]] bool flood(const Flood::Terms& terms);

 private:
  [[nodiscard]] bool is_worth_two_threads() const;
  [[nodiscard]] bool drive(Pump& pump, std::vector<pollfd>& polled) const;

  const SpanMap& map_;
  SpanStop& stop_;
  const std::size_t piece_bytes_;
  const std::size_t portion_bytes_;
  std::vector<Link*> hops_;
  std::unique_ptr<os::Pool> two_threads_;  // Null: one thread is enough; is_worth_two_threads().
  Chain::Buffers buffers_;
  std::vector<pollfd> polled_;
  std::vector<pollfd> polled_back_;  // For the second thread.
};

}  // namespace holdfast::collective
