// PrivateCopy: the private bytes of another rank, held in memory of this host that outlives the
// process: if that rank's host is lost, its successor gets them from here.
//
// Like an arena it holds a version and perhaps the step after it, and a SIGKILL at any instruction
// leaves a file that says truly which of them are whole. Its staged step needs no update: those
// are the private bytes of the next version.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "base/ids.h"
#include "base/result.h"
#include "os/mapping.h"
#include "os/shared_file.h"

namespace holdfast::arena {

class PrivateCopy {
 public:
  // Makes a file that holds nothing, in place of what is there. Errors: no room (names the folder).
  [[nodiscard]] static Result<PrivateCopy> make(const std::string& path, std::uint64_t run_id,
                                                Rank ward, std::uint64_t bytes);
  // Errors: there is none; it is of another run, or damaged.
  [[nodiscard]] static Result<PrivateCopy> open(const std::string& path, std::uint64_t run_id,
                                                os::Access access = os::Access::kWrite);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] Rank ward() const;  // Whose bytes they are.
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] Version version() const;  // kNoVersion: nothing is whole.
  [[nodiscard]] Version staged() const;   // version() or version() + 1
  [[nodiscard]] bool has(Version v) const {
    return version() != kNoVersion && (v == version() || v == staged());
  }
  // Where the bytes of version v are; whole if has(v).
  [[nodiscard]] std::span<std::byte> place(Version v) const;
  // Which of them were taken: in order. The others mean nothing.
  [[nodiscard]] std::vector<Range> used(Version v) const;
  static constexpr std::size_t kMostParts = 8;

  // What a file says of itself.
  struct Facts {
    Rank ward = kNoRank;
    std::uint64_t bytes = 0;
    Version version = kNoVersion;
    Version staged = kNoVersion;
    std::vector<Range> used[2];  // Of version v in [v % 2]; means nothing unless has(v).

    [[nodiscard]] bool has(Version v) const {
      return version != kNoVersion && (v == version || v == staged);
    }
    // What another host needs of the file at version v: in order, none empty. The first is the
    // file's beginning.
    [[nodiscard]] std::vector<Range> ranges_to_copy(Version v) const;
  };
  // `beginning`: the first bytes of a file of so many bytes. Errors: it is of another run, or
  // damaged; `name` is for these.
  [[nodiscard]] static Result<Facts> read(std::span<const std::byte> beginning,
                                          std::uint64_t file_bytes, std::uint64_t run_id,
                                          const std::string& name);
  [[nodiscard]] Facts facts() const;
  [[nodiscard]] std::uint64_t file_bytes() const;

  // The bytes of version v are about to be written to place(v). What lay there counts no more.
  void expect(Version v);
  // They are whole: those in `used`, in order and at most kMostParts of them; none: all. Of a
  // version that follows version() they are staged; of any other one they are all that is held.
  // Requires: expect(v) before.
  void take(Version v, std::span<const Range> used = {});
  // Its rank is at version v: a step that was staged after it is void, one that led to it is made.
  void settle(Version v);

 private:
  PrivateCopy(std::string path, os::Mapping mapping)
      : path_(std::move(path)), mapping_(std::move(mapping)) {}

  std::string path_;
  os::Mapping mapping_;
};

}  // namespace holdfast::arena
