// Segment: the shared memory of one group in one generation: the gate, the ranks' requests, and
// their windows. A rank passes data to the others by writing it into its window.
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
  // Makes the file or opens it, as Group::join() says. `names`: by rank of the segment, its number
  // in errors; empty: the rank itself.
  static Result<std::unique_ptr<Segment>> open(const Group::Options& options,
                                               std::vector<int> names = {});
  static Status check(const Group::Options& options);  // Checks what needs no other rank.
  // Waits for all ranks. Call it once.
  Status meet(const Group::Options& options, const std::stop_token& cancel);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int world_size() const { return world_size_; }
  // Barrier 0 of the gate is meet().
  [[nodiscard]] Gate& gate() const { return control().gate; }

  // The rank's request in operation `sequence`. There is room for two, by parity. That is enough: a
  // rank writes the request of operation k + 2 only after all ranks have arrived at operation
  // k + 1, and so have read the requests of k.
  [[nodiscard]] Request& request(int rank, std::uint64_t sequence) const {
    return state_of(rank).requests[sequence % 2].request;
  }
  // One half of the rank's window, chosen by the parity of `piece`. A half may be written again
  // only after all ranks have arrived at a barrier after they last read it. Mostly the two halves
  // are used in turn.
  [[nodiscard]] std::byte* window(int rank, std::uint64_t piece) const;
  [[nodiscard]] std::size_t half_bytes() const { return half_bytes_; }

  // How many blocks of the rank's share have been taken; see HostPart::take().
  [[nodiscard]] std::atomic<std::uint64_t>& taken(int rank) const { return state_of(rank).taken; }

  // Takes the memory of the first `bytes` bytes of both halves of this rank's window; call it
  // before writing there. False: there was no room within Options::room_timeout, or before somebody
  // ended this generation.
  [[nodiscard]] bool take_window(std::size_t bytes);
  [[nodiscard]] const std::string& directory() const { return directory_; }

  void leave();                                 // This rank comes no more; ends the gate.
  [[nodiscard]] std::vector<int> left() const;  // The ranks that left, as their names in errors.

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
  // The beginning of the file. After it come the RankStates and, on new pages, the windows.
  struct Control {
    Identity identity;
    Gate gate;
  };
  static_assert(sizeof(Control) % alignof(RankState) == 0);

  Segment(const Group::Options& options, os::Fd file, SharedMapping mapping);
  static Identity identity_of(const Group::Options& options);
  static std::size_t control_bytes(int world_size);  // Control and RankStates, in whole pages.
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
  std::size_t taken_ = 0;  // Bytes taken of each half of this rank's window.
};

}  // namespace holdfast::collective
