// Pumps: what one leader does with its lane's pieces of a large operation. They start flows and
// reckon; SpanPart moves the flows and waits for them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/flow.h"
#include "collective/reduce.h"
#include "collective/span_map.h"

namespace holdfast::collective {

// Bytes [begin, begin + bytes) of an operation's `total`, cut into pieces. This lane's are those
// whose numbers are `lane` modulo `lanes`.
struct Pieces {
  std::size_t total = 0;
  std::size_t piece_bytes = 0;
  std::size_t begin = 0;  // A multiple of piece_bytes.
  std::size_t bytes = 0;
  std::size_t lane = 0;
  std::size_t lanes = 1;

  [[nodiscard]] std::size_t count() const;                    // In this lane.
  [[nodiscard]] std::size_t number(std::size_t index) const;  // In the operation.
  [[nodiscard]] std::size_t at(std::size_t index) const {     // From `begin` on.
    return number(index) * piece_bytes - begin;
  }
  [[nodiscard]] std::size_t size(std::size_t index) const;
};

class Pump {
 public:
  virtual ~Pump() = default;
  // Starts what can be started. Returns whether there was anything.
  virtual bool advance() = 0;
  [[nodiscard]] virtual bool is_done() const = 0;
  [[nodiscard]] const std::vector<Flow*>& flows() const { return flows_; }

 protected:
  std::vector<Flow*> flows_;
};

// A reduction along the runs: each run adds its rows to the partial of those before; the last one
// has the result and sends it back.
//
// A host between two others has twice as much to move as one thread can. So one may drive the way
// there (kThere: partials, and what the last run makes of them), another one the way back. They
// share nothing: the result of a piece comes only once its partial has come to the last run, so
// this host has sent it on by then, and what it is written over is needed no more.
class Chain final : public Pump {
 public:
  enum class Ways : std::uint8_t { kBoth, kThere, kBack };
  struct Terms {
    Reduction how{};
    std::size_t all = 0;  // Rows of the whole group.
    std::uint64_t sequence = 0;
    Pieces pieces;
    std::vector<const std::byte*> rows;  // By local rank, at pieces.begin.
    std::vector<std::byte*> outs;        // Where the result goes; the first is sent on from.
  };
  using Buffers = std::vector<std::vector<std::byte>>;  // Kept for the next one.

  // `hops`: by hop; null where this rank has no link.
  Chain(const SpanMap& map, const std::vector<Link*>& hops, const Terms& terms, Buffers& buffers,
        Ways ways);
  bool advance() override;
  [[nodiscard]] bool is_done() const override;

 private:
  static constexpr std::size_t kSlots = 2;  // One is filled while the other is sent.
  // What this host does for one of its runs.
  struct Stage {
    std::vector<const std::byte*> rows;
    Link* before = nullptr;  // Null: the first run.
    Link* behind = nullptr;  // Null: the last run.
    Flow partial_in, partial_out, result_in, result_out;
    std::array<std::vector<std::byte>*, kSlots> slots{};
    // How many of the lane's pieces have come that far.
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

// Copies of what one run's host has, outwards along the runs to all other hosts.
class Flood final : public Pump {
 public:
  struct Terms {
    int root = 0;  // A rank of the host that has it.
    std::uint64_t sequence = 0;
    Pieces pieces;
    std::byte* place = nullptr;  // Of this host, at pieces.begin; the root's is only read.
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
    Link* source = nullptr;  // Null: this host has all.
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
