// Segment: the shared memory of one generation of one group: its gate, the ranks' requests, and
// their windows: through a rank's window the others see what it shows.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "collective/gate.h"
#include "collective/group.h"
#include "collective/request.h"
#include "collective/shared_mapping.h"

namespace holdfast::collective {

class Segment {
 public:
  // Makes the file or opens it, as Group::join says.
  // `names`: by rank, what the ranks are called in errors; empty: by their numbers here.
  static Result<std::unique_ptr<Segment>> open(const Group::Options& options,
                                               std::vector<int> names = {});
  static Status check(const Group::Options& options);  // What can be checked without the others.
  // Waits for all ranks; once.
  Status meet(const Group::Options& options, const std::stop_token& cancel);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int world_size() const { return world_size_; }
  // Barrier 0 of the gate was the joining.
  [[nodiscard]] Gate& gate() const { return control().gate; }

  // Rank's request of the given parity. Two are enough: a rank writes that of operation k + 2 only
  // after all have arrived at operation k + 1, so have read those of k.
  [[nodiscard]] Request& request(int rank, std::uint64_t sequence) const {
    return state_of(rank).requests[sequence % 2].request;
  }
  // A half of the rank's window. A half is written again only after all ranks have arrived at a
  // barrier that came after the last look at it. Mostly the two are used in turn.
  [[nodiscard]] std::byte* window(int rank, std::uint64_t piece) const;
  [[nodiscard]] std::size_t half_bytes() const { return half_bytes_; }

  // Which blocks of the rank's share have been taken; see HostPart::take().
  [[nodiscard]] std::atomic<std::uint64_t>& taken(int rank) const { return state_of(rank).taken; }

  // Of both halves of this rank so many bytes, before the first is written to; false: no room, for
  // as long as Options::room_timeout, or until somebody has ended this generation.
  [[nodiscard]] bool take_window(std::size_t bytes);
  [[nodiscard]] const std::string& directory() const { return directory_; }

  void leave();                                 // Tells the others; see Gate.
  [[nodiscard]] std::vector<int> left() const;  // By name.

 private:
  [[nodiscard]] int name_of(int rank) const {
    return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)];
  }
  struct alignas(64) Line {
    Request request;
  };
  struct alignas(128) RankState {
    std::atomic<std::uint32_t> joined;
    std::atomic<std::uint32_t> left;
    Line requests[2];
    alignas(128) std::atomic<std::uint64_t> taken;
  };
  struct Identity {
    std::uint64_t magic;
    std::uint64_t run_id;
    std::uint64_t generation;
    std::uint64_t world_size;
    std::uint64_t registered_offset;
    std::uint64_t registered_bytes;
    std::uint64_t window_bytes;
    bool operator==(const Identity&) const = default;
  };
  // What the file begins with. Behind it come the ranks' states, and on new pages their windows.
  struct Control {
    Identity identity;
    Gate gate;
  };
  static_assert(sizeof(Control) % alignof(RankState) == 0);

  Segment(const Group::Options& options, os::Fd file, SharedMapping mapping);
  static Identity identity_of(const Group::Options& options);
  static std::size_t control_bytes(int world_size);  // With the ranks' states; whole pages.
  static std::size_t size_of(const Group::Options& options);
  static Result<os::Fd> open_or_publish(const Group::Options& options, const std::string& path,
                                        int name);
  static Error no_room(const Group::Options& options);
  static Status take_first(const os::Fd& file, std::size_t bytes, const Group::Options& options);
  static Status publish(const Group::Options& options, const std::string& path);
  [[nodiscard]] Control& control() const {
    return *reinterpret_cast<Control*>(mapping_->bytes().data());
  }
  [[nodiscard]] RankState& state_of(int rank) const {
    return reinterpret_cast<RankState*>(&control() + 1)[rank];
  }

  os::Fd file_;
  SharedMapping mapping_;
  std::string directory_;
  std::vector<int> names_;
  int rank_;
  int world_size_;
  std::size_t half_bytes_;
  std::chrono::milliseconds room_timeout_;
  std::size_t taken_ = 0;  // Of each of this rank's halves.
};

}  // namespace holdfast::collective
