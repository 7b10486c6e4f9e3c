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
  // Where they lie in the file.
  [[nodiscard]] static std::uint64_t header_bytes();
  [[nodiscard]] std::uint64_t offset(Version v) const;
  [[nodiscard]] std::uint64_t file_bytes() const;

  // The bytes of version v are about to be written to place(v). What lay there counts no more.
  void expect(Version v);
  // They are whole. Of a version that follows version() they are staged; of any other one they are
  // all that is held.
  void take(Version v);
  // Its rank is at version v: a step that was staged after it is void, one that led to it is made.
  void settle(Version v);

 private:
  PrivateCopy(std::string path, os::Mapping mapping)
      : path_(std::move(path)), mapping_(std::move(mapping)) {}

  std::string path_;
  os::Mapping mapping_;
};

}  // namespace holdfast::arena
