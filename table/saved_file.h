// A file of saved tables: a safetensors file with rows of one table. What it consists of, how it is
// read and checked, and how one is written block by block. Only for the files of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "os/draft.h"
#include "os/fd.h"
#include "snapshot/safetensors.h"
#include "table/spec.h"

namespace holdfast::table {

using Json = snapshot::Json;
struct Saved;

[[nodiscard]] Error unusable(const std::string& path, const std::string& what);

// One of a file's tensors: a part of each row.
struct Part {
  std::string name;
  std::string type;
  std::vector<std::uint64_t> shape;  // The first is the number of rows.
  std::uint64_t bytes = 0;           // Of one row.
  std::uint64_t at = 0;  // Where it begins: behind the head, or, once read, in the file.
};
// `keys`, `rows`, and `state` if there is one.
[[nodiscard]] std::vector<Part> parts_of(const Spec& spec, std::uint64_t rows);

// What a file says of itself beside its tensors.
struct About {
  std::uint64_t run_id = 0;
  std::uint64_t step = 0;
  std::uint64_t updates = 0;
  std::uint64_t digest = 0;  // The sum of those of its rows.
};
[[nodiscard]] Json metadata_of(const Spec& spec, const About& about);
// The bytes before the tensors, with spaces up to `at_least`.
[[nodiscard]] std::string head_of(const Json& metadata, const std::vector<Part>& parts,
                                  std::size_t at_least = 0);

// Of the row `row` of a table with this key.
[[nodiscard]] std::uint64_t digest_of(const Spec& spec, std::uint64_t key, const std::byte* row);

// How many rows fit in a block of a megabyte: what is read or written at once.
[[nodiscard]] std::uint64_t rows_at_once(const Spec& spec);
// Some rows, part by part.
using Block = std::vector<std::vector<std::byte>>;

// A whole number among the metadata of a header. False: there is none.
[[nodiscard]] bool read_number(const Json& header, const char* name, std::uint64_t& to);

// A file's head that was read and found right.
struct Opened {
  os::Fd file;
  std::vector<Part> parts;
  std::uint64_t rows = 0;
  About about;
};
// Opens a file of the save. `updates`: what the table's other files say; set if they said nothing.
[[nodiscard]] Result<Opened> open_file(const std::string& path, const Spec& spec,
                                       const Saved& saved, std::optional<std::uint64_t>& updates);
// Reads all rows in their order, and compares their digest at the end. Stops at an error of
// `on_row`. `row` is as in a table file.
[[nodiscard]] Status read_rows(
    const std::string& path, const Spec& spec, const Opened& opened,
    const std::function<Status(std::uint64_t key, const std::byte* row)>& on_row);
// Splits a row as it is in a table file into its parts of a block.
void put_row(const Spec& spec, std::uint64_t key, const std::byte* row, std::uint64_t number,
             Block& block);

// A file of rows that is being written. It gets its name when it is whole, and on the disk; without
// that nothing is left of it.
class NewFile {
 public:
  // `head_bytes`: how long its head will be.
  NewFile(std::string path, std::vector<Part> parts, std::size_t head_bytes);
  [[nodiscard]] Status write(std::uint64_t from, std::uint64_t count, const Block& block);
  [[nodiscard]] Status publish(const std::string& head);

 private:
  [[nodiscard]] Error failed() const;

  std::string path_;
  std::vector<Part> parts_;
  os::Draft draft_;
  int unopened_ = 0;  // errno, if there could be no file.
};

}  // namespace holdfast::table
