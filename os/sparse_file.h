// SparseFile: a file in shared memory that is mapped whole, of which only the parts that were taken
// have memory. So a part of it can grow in place, up to where the next one begins.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "os/fd.h"
#include "os/mapping.h"

namespace holdfast::os {

class SparseFile {
 public:
  // Makes a file of `bytes` zeros at path + ".new", none of which has memory, and missing folders.
  // give_name() (os/shared_file.h) then moves it to `path`. Error: the process has no room for so
  // many addresses.
  [[nodiscard]] static Result<SparseFile> make(const std::string& path, std::uint64_t bytes);
  // Maps the file at `path` for writing. `mapping` is empty if there is none.
  [[nodiscard]] static Result<SparseFile> open(const std::string& path);
  // Removes what make() has made, before it has its name.
  void discard();

  [[nodiscard]] const Mapping& mapping() const { return mapping_; }
  // Takes memory for these bytes; a write to bytes without memory may end the process. Bytes that
  // have memory stay as they are. Error (kWorld): there is none left, with the sizes; `whose` says
  // in a clause who needs it. Some of the memory may be taken then.
  [[nodiscard]] Status take(std::uint64_t offset, std::uint64_t bytes, const std::string& whose);
  // Gives the memory of these whole pages back: they are zero.
  void drop(std::uint64_t offset, std::uint64_t bytes);
  // How much memory the file has.
  [[nodiscard]] std::uint64_t taken() const;

 private:
  Fd file_;
  Mapping mapping_;
  std::string path_;
};

}  // namespace holdfast::os
