#include "table/importing.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"
#include "table/listing.h"
#include "table/rules.h"
#include "table/saved.h"
#include "table/saved_file.h"

namespace holdfast::table {
namespace {

using Rule = Optimizer::Rule;

constexpr std::uint64_t kMostUpdates = std::uint64_t{1} << 62;

std::string shape_text(std::uint64_t rows, std::uint64_t values) {
  return values == 0 ? cat('[', rows, ']') : cat('[', rows, ", ", values, ']');
}

// A file whose rows are to become a table's.
class Source {
 public:
  Source(std::string path, const Spec& spec) : path_(std::move(path)), spec_(spec), theirs_(spec) {}

  Status open() {
    auto head = snapshot::read_head(path_);
    if (!head) return head.error();
    head_ = *std::move(head);
    header_ = snapshot::parse(head_.text);
    if (!header_.is_object()) return refused("its header is no JSON object");
    for (const auto& [name, tensor] : header_.items()) {
      if (name == "__metadata__" || name == "keys" || name == "rows" || name == "state") continue;
      return refused(cat("it has a tensor `", printable(name),
                         "`; there are `keys`, `rows` and perhaps `state`"));
    }
    if (Status found = find("keys", {"I64"}, 0, sizeof(std::uint64_t)); !found) return found;
    if (Status found = find_rows(); !found) return found;
    if (header_.contains("state")) {
      if (Status found = find_state(); !found) return found;
    } else if (spec_.optimizer.rule == Rule::kFtrl) {
      return refused("it has no tensor `state`, from which ftrl computes the rows");
    }
    return fill_the_file() ? read_keys() : refused("its tensors overlap, or leave a gap");
  }

  // The rows from number `from` on, as they will be in the table.
  Status read(std::uint64_t from, std::uint64_t count, Block& block, std::uint64_t& digest) {
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const Part& part = parts_[p];
      block_[p].resize(count * part.bytes);
      const std::uint64_t at = part.at + from * part.bytes;
      if (!os::read_at(head_.file.get(), at, block_[p])) return refused("it can not be read");
    }
    std::vector<std::byte> row(spec_.row_bytes());
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint64_t key = 0;
      std::memcpy(&key, block_[0].data() + i * sizeof key, sizeof key);
      if (Status made = make_row(key, i, row.data()); !made) return made;
      digest += digest_of(spec_, key, row.data());
      put_row(spec_, key, row.data(), i, block);
    }
    return {};
  }

  [[nodiscard]] bool has_state() const { return parts_.size() > 2; }
  [[nodiscard]] Imported about() const {
    return {.spec = spec_,
            .rows = rows_,
            .greatest_key = greatest_key_,
            .updates = updates_,
            .has_state = has_state(),
            .is_rounded = theirs_.type == Type::kFloat32 && spec_.type == Type::kBfloat16};
  }

 private:
  [[nodiscard]] Error refused(const std::string& why) const {
    return {Blame::kUser, cat(path_, " can not be imported: ", why)};
  }

  // Adds a tensor to the parts, if it is one of the types and has a row for each key. `values`: of
  // a row; 0: the tensor has one dimension.
  Status find(const std::string& name, const std::vector<std::string>& types, std::uint64_t values,
              std::uint64_t bytes) {
    const auto tensor = header_.find(name);
    if (tensor == header_.end()) return refused(cat("it has no tensor `", name, "`"));
    const auto wrong = [&](const std::string& what) {
      return refused(cat("its tensor `", name, "` ", what));
    };
    const Json type = tensor->is_object() ? tensor->value("dtype", Json()) : Json();
    const Json shape = tensor->is_object() ? tensor->value("shape", Json()) : Json();
    const Json range = tensor->is_object() ? tensor->value("data_offsets", Json()) : Json();
    const auto are_numbers = [](const Json& list) {
      return list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& number) {
               return number.is_number_unsigned();
             });
    };
    if (!type.is_string() || !are_numbers(shape) || !are_numbers(range) || range.size() != 2) {
      return wrong("is not described as in a safetensors file");
    }
    if (std::find(types.begin(), types.end(), type.get_ref<const std::string&>()) == types.end()) {
      return wrong(cat("is of type ", printable(type.get<std::string>()), ", and table ",
                       spec_.name, " takes ", types.front(),
                       types.size() > 1 ? " or " + types.back() : ""));
    }
    const std::uint64_t begin = range[0].get<std::uint64_t>();
    const std::uint64_t end = range[1].get<std::uint64_t>();
    if (begin > end || end > head_.bytes) return wrong("lies outside of the file: it is cut short");
    const std::uint64_t rows = (end - begin) / bytes;
    if (parts_.empty()) rows_ = rows;
    const Json expected = values == 0 ? Json::array({rows_}) : Json::array({rows_, values});
    if (shape != expected) {
      return wrong(cat("has the shape ", printable(shape.dump()), ", and table ", spec_.name,
                       " expects ", shape_text(rows_, values)));
    }
    if (rows != rows_ || (end - begin) % bytes != 0) {
      return wrong("has another size than its shape tells");
    }
    parts_.push_back({name, type, {}, bytes, head_.data + begin});
    return {};
  }

  // Whether each byte behind the head is of just one tensor.
  [[nodiscard]] bool fill_the_file() const {
    std::vector<Part> parts = parts_;
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.at < b.at; });
    std::uint64_t end = head_.data;
    for (const Part& part : parts) {
      if (part.at != end) return false;
      end += rows_ * part.bytes;
    }
    return end == head_.data + head_.bytes;
  }

  Status find_rows() {
    const auto tensor = header_.find("rows");
    const bool is_narrow =
        tensor != header_.end() && tensor->is_object() && tensor->value("dtype", Json()) == "BF16";
    theirs_.type = is_narrow ? Type::kBfloat16 : Type::kFloat32;
    return find("rows", {"F32", "BF16"}, spec_.values, theirs_.value_bytes());
  }

  // A state is worth something only with the optimizer that it is of, and Adam's with its count.
  Status find_state() {
    const std::string optimizer = name_of(spec_.optimizer.rule);
    const std::uint64_t floats = spec_.state_floats();
    if (floats == 0) {
      return refused(cat("it has a tensor `state`, and the optimizer of table ", spec_.name, ", ",
                         optimizer, ", has none: leave it out"));
    }
    const Json::json_pointer of("/__metadata__/optimizer");
    const Json theirs = header_.contains(of) ? header_[of] : Json(optimizer);
    if (theirs != optimizer) {
      return refused(cat("its `state` is of ", printable(theirs.dump()), ", and table ", spec_.name,
                         " has ", optimizer, ": leave it out"));
    }
    if (Status found = find("state", {"F32"}, floats, floats * sizeof(float)); !found) return found;
    const bool is_counted = read_number(header_, "updates", updates_) && updates_ <= kMostUpdates;
    if (!is_counted) updates_ = 0;
    const bool counts = spec_.optimizer.rule == Rule::kAdam || spec_.optimizer.rule == Rule::kAdamW;
    if (is_counted || !counts) return {};
    return refused(cat("its metadata do not say how many updates have made the `state` of ",
                       optimizer,
                       R"(: write it with metadata={"updates": "1000"}, or leave `state` out)"));
  }

  Status read_keys() {
    constexpr std::uint64_t kAtOnce = 131072;
    std::vector<std::uint64_t> keys(rows_);
    for (std::uint64_t from = 0; from < rows_; from += kAtOnce) {
      const std::span some = std::span(keys).subspan(from, std::min(kAtOnce, rows_ - from));
      const std::uint64_t at = parts_[0].at + from * sizeof keys[0];
      if (!os::read_at(head_.file.get(), at, std::as_writable_bytes(some))) {
        return refused("it can not be read");
      }
    }
    std::sort(keys.begin(), keys.end());
    if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end()) {
      return refused(cat("it has key ", static_cast<std::int64_t>(*twice), " twice"));
    }
    greatest_key_ = keys.empty() ? 0 : keys.back();
    const auto greatest = static_cast<std::int64_t>(greatest_key_);
    if (greatest >= 0) return {};
    return refused(cat("it has key ", greatest, "; keys are from 0 on"));
  }

  Status make_row(std::uint64_t key, std::uint64_t i, std::byte* row) {
    const auto wrong = [&](const char* what) {
      return refused(cat("its row of key ", key, " has ", what));
    };
    read_values(theirs_, block_[1].data() + i * theirs_.value_bytes(), values());
    if (!are_finite(values())) return wrong("a value that is no finite number");
    write_values(spec_, values(), row);
    read_values(spec_, row, values());
    if (!are_finite(values())) return wrong("a value that is too great for bfloat16");
    begin_state(spec_, row);
    if (!has_state()) return {};
    const std::size_t floats = spec_.state_floats();
    auto* const state = reinterpret_cast<float*>(row + spec_.state_offset());
    std::memcpy(state, block_[2].data() + i * floats * sizeof(float), floats * sizeof(float));
    if (!are_finite({state, floats})) return wrong("a number in its state that is not finite");
    // The optimizer takes their roots.
    const auto [first, last] = squares();
    const bool are_squares =
        std::all_of(state + first, state + last, [](float number) { return number >= 0; });
    return are_squares ? Status() : wrong("a sum of squares in its state that is below 0");
  }

  // Which numbers of a state are sums of squares.
  [[nodiscard]] std::pair<std::size_t, std::size_t> squares() const {
    switch (spec_.optimizer.rule) {
      case Rule::kSgd:
      case Rule::kMomentum:
        return {0, 0};
      case Rule::kRowAdagrad:
        return {0, 1};
      case Rule::kAdagrad:
      case Rule::kFtrl:
        return {0, spec_.values};
      case Rule::kAdam:
      case Rule::kAdamW:
        return {spec_.values, 2 * std::size_t{spec_.values}};
    }
    return {0, 0};
  }

  static bool are_finite(std::span<const float> numbers) {
    return std::all_of(numbers.begin(), numbers.end(), [](float n) { return std::isfinite(n); });
  }
  [[nodiscard]] std::span<float> values() { return {values_, spec_.values}; }

  const std::string path_;
  const Spec& spec_;
  Spec theirs_;  // With the type of the file's rows.
  snapshot::Head head_;
  Json header_;
  std::vector<Part> parts_;  // `keys`, `rows`, perhaps `state`; `at` is from the file's beginning.
  std::uint64_t rows_ = 0;
  std::uint64_t greatest_key_ = 0;
  std::uint64_t updates_ = 0;
  Block block_ = Block(3);
  float values_[kMostValues];
};

// Keeps other imports out, where the file system has locks. Error: one is at work.
Result<os::Fd> lock(const std::string& folder) {
  os::Fd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened && ::flock(opened.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Error{Blame::kWorld, cat("another import into ", folder,
                                    " is at work: try again "
                                    "when it has ended")};
  }
  return opened;  // Without a folder there is no manifest.
}

// A name that no file of the folder has.
std::string name_for(const std::string& folder, const Saved& saved, std::size_t t) {
  for (std::uint64_t n = 1;; ++n) {
    std::string name = cat("table-", t, ".imported-", n, ".step-", saved.step, ".run-",
                           saved.run_id, ".safetensors");
    if (::access((folder + "/" + name).c_str(), F_OK) != 0) return name;
  }
}

Status write(Source& source, const Saved& saved, const std::string& path) {
  const Imported imported = source.about();
  const Spec& spec = imported.spec;
  About about{saved.run_id, saved.step, imported.updates,
              std::numeric_limits<std::uint64_t>::max()};
  const auto parts = parts_of(spec, imported.rows);
  // Long enough for any digest, which is known at the end.
  const std::size_t head_bytes = head_of(metadata_of(spec, about), parts).size();
  about.digest = 0;
  NewFile to(path, parts, head_bytes);
  const std::uint64_t at_once = rows_at_once(spec);
  Block block;
  for (const Part& part : parts) block.emplace_back(at_once * part.bytes);
  for (std::uint64_t from = 0; from < imported.rows; from += at_once) {
    const std::uint64_t count = std::min(at_once, imported.rows - from);
    if (Status read = source.read(from, count, block, about.digest); !read) return read;
    if (Status written = to.write(from, count, block); !written) return written;
  }
  return to.publish(head_of(metadata_of(spec, about), parts, head_bytes));
}

}  // namespace

Result<Imported> import_table(const std::string& file, const std::string& folder,
                              const std::string& name) {
  const auto locked = lock(folder);
  if (!locked) return locked.error();
  const auto listing = list(folder, false);
  if (!listing) return listing.error();
  const Saved& saved = listing->saved;
  const auto t = table_named(saved, folder, name);
  if (!t) return t.error();
  for (std::size_t other = 0; other < saved.specs.size(); ++other) {
    const auto& problems = listing->tables[other].problems;
    if (other != *t && !problems.empty()) return Error{Blame::kUser, problems.front()};
  }
  Source source(file, saved.specs[*t]);
  if (Status opened = source.open(); !opened) return opened.error();
  Saved after = saved;
  after.files[*t] = {name_for(folder, saved, *t)};
  const std::string path = folder + "/" + after.files[*t].front();
  if (Status written = write(source, saved, path); !written) return written.error();
  const auto now = read_manifest(folder);
  Status named = now && *now == saved
                     ? save_manifest(folder, after)
                     : Error{Blame::kWorld, cat("somebody has saved tables in ", folder,
                                                " meanwhile: nothing was imported")};
  if (named) return source.about();
  ::unlink(path.c_str());
  return named.error();
}

}  // namespace holdfast::table
