// Pumps: a lane leader's work on the pieces of a large operation. A pump starts flows and computes;
// SpanPart moves the flows and waits for them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/flow.h"
#include "collective/reduce.h"
#include "collective/span_map.h"

namespace holdfast::collective {

// Bytes [begin, begin + bytes) of an operation's `total`, cut into pieces. The pieces of this lane
// are those whose number modulo `lanes` is `lane`.
struct Pieces {
  std::size_t total = 0;
  std::size_t piece_bytes = 0;
  std::size_t begin = 0;  // A multiple of piece_bytes.
  std::size_t bytes = 0;
  std::size_t lane = 0;
  std::size_t lanes = 1;

  // `index`: a piece's number in this lane, from 0 to count() - 1.
  [[nodiscard]] std::size_t count() const;
  [[nodiscard]] std::size_t number(std::size_t index) const;  // Its number in the operation.
  [[nodiscard]] std::size_t at(std::size_t index) const {     // Its offset from `begin`, in bytes.
    return number(index) * piece_bytes - begin;
  }
  [[nodiscard]] std::size_t size(std::size_t index) const;
};

class Pump {
 public:
  virtual ~Pump() = default;
  // Starts all flows and computations that can start. Returns whether there were any.
  virtual bool advance() = 0;
  [[nodiscard]] virtual bool is_done() const = 0;
  [[nodiscard]] const std::vector<Flow*>& flows() const { return flows_; }

 protected:
  std::vector<Flow*> flows_;
};

// A reduction along the runs of ranks: each run adds its rows to the partial result of the runs
// before it. The last run has the result and sends it back the same way.
//
// A host between two others has twice as much to move as one thread can. So one thread may drive
// the way there (kThere: the partials, and the results that the last run makes of them), and
// another thread the way back (kBack). They need no lock: a piece's result comes only once its
// partial has reached the last run. By then this host has sent the partial on, and the rows that
// the result overwrites are not needed any more.
class Chain final : public Pump {
 public:
  enum class Ways : std::uint8_t { kBoth, kThere, kBack };
  struct Terms {
    Reduction how{};
    std::size_t all = 0;  // Rows of the whole group.
    std::uint64_t sequence = 0;
    Pieces pieces;
    std::vector<const std::byte*> rows;  // By local rank, at pieces.begin.
    std::vector<std::byte*> outs;        // Where the result goes. Links read and write the first.
  };
  using Buffers = std::vector<std::vector<std::byte>>;  // Memory that the next Chain uses again.

  // `hops`: by hop; null where this rank has no link.
  Chain(const SpanMap& map, const std::vector<Link*>& hops, const Terms& terms, Buffers& buffers,
        Ways ways);
  bool advance() override;
  [[nodiscard]] bool is_done() const override;

 private:
  static constexpr std::size_t kSlots = 2;  // One is filled while the other is sent.
  // The state of this host's work for one of its runs.
  struct Stage {
    std::vector<const std::byte*> rows;
    Link* before = nullptr;  // Null: the first run.
    Link* behind = nullptr;  // Null: the last run.
    Flow partial_in, partial_out, result_in, result_out;
    std::array<std::vector<std::byte>*, kSlots> slots{};
    // How many of the lane's pieces are done. Partials: received, reduced, sent. Results: got
    // here, passed on.
    std::size_t received = 0, reduced = 0, sent = 0, got = 0, passed = 0;
  };
  [[nodiscard]] bool sends_results(const Stage& stage) const;
  [[nodiscard]] bool is_done(const Stage& stage) const;
  bool send_partials(Stage& stage);
  bool receive(Stage& stage);
  bool reduce(Stage& stage);
  bool return_results(Stage& stage);
  void spread(std::size_t index);
  [[nodiscard]] bool sends_row(const Stage& stage) const;
  [[nodiscard]] std::span<std::byte> slot(Stage& stage, std::size_t index) const;
  [[nodiscard]] Frame frame(FrameType type, std::size_t index, std::size_t bytes) const;

  const Terms& terms_;
  const Ways ways_;
  const std::size_t count_;
  std::vector<Stage> stages_;
  std::vector<const std::byte*> piece_rows_;
};

// Copies data of one host to all others, outwards along the runs of ranks.
class Flood final : public Pump {
 public:
  struct Terms {
    int root = 0;  // A rank of the host that has the data.
    std::uint64_t sequence = 0;
    Pieces pieces;
    std::byte* place = nullptr;  // This host's memory, at pieces.begin. The root's is only read.
  };
  Flood(const SpanMap& map, const std::vector<Link*>& hops, const Terms& terms);
  bool advance() override;
  [[nodiscard]] bool is_done() const override;

 private:
  struct Out {
    Flow flow;
    std::size_t sent = 0;
  };
  struct Stage {
    Link* source = nullptr;  // Null: this host is the root's, and has all data.
    Flow in;
    std::size_t received = 0;
    std::vector<Out> outs;
  };
  [[nodiscard]] std::span<std::byte> piece(std::size_t index) const;
  [[nodiscard]] Frame frame(std::size_t index) const;

  const Terms& terms_;
  const std::size_t count_;
  std::vector<Stage> stages_;
};

}  // namespace holdfast::collective
