// What the tests of tables share: the tables of a server in private memory, written once more
// without files, undo, threads or an index.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/prng.h"
#include "os/testing.h"
#include "table/initial.h"
#include "table/rules.h"
#include "table/tables.h"

namespace holdfast::table::testing {

struct Directory : os::TemporaryFolder {
  Directory() : TemporaryFolder("/dev/shm") {}
  [[nodiscard]] std::string file(const std::string& name) const { return *this / name; }
};

// What one push brings: keys, of which some come twice, and their gradients.
struct Push {
  std::vector<std::uint64_t> keys;
  std::vector<float> gradients;
};

// The push of step n to a table: the same in every process. The first steps bring many new keys,
// later ones mostly known ones: each step may bring `more` new ones.
inline Push push_of(Version n, const Spec& spec, std::size_t count, std::uint64_t more = 20) {
  Prng random(derive(7, n, spec.values));
  Push push;
  const std::uint64_t most = 50 + more * n;
  for (std::size_t i = 0; i < count; ++i) {
    push.keys.push_back(mix(random.below(most)));
    for (std::uint32_t v = 0; v < spec.values; ++v) {
      push.gradients.push_back(static_cast<float>(random.below(2000)) * 1e-3F - 1);
    }
  }
  return push;
}

inline Arguments arguments_of(Version n) {
  return {.learning_rate = n % 2 == 0 ? 0.01 : 0.1,
          .weight_decay = n % 3 == 0 ? 0.01 : 0,
          .update_count = n,
          .assigns = n % 5 == 4 ? 1U : 0U};
}

// One table.
class Reference {
 public:
  explicit Reference(Spec spec) : spec_(std::move(spec)), beginning_(spec_) {}

  [[nodiscard]] std::vector<std::byte> row(std::uint64_t key) const {
    if (const auto found = rows_.find(key); found != rows_.end()) return found->second;
    std::vector<std::byte> row(spec_.row_bytes());
    std::vector<float> values(spec_.values);
    beginning_.fill(key, values);
    write_values(spec_, values, row.data());
    begin_state(spec_, row.data());
    return row;
  }
  [[nodiscard]] std::vector<float> values(std::uint64_t key) const {
    std::vector<float> values(spec_.values);
    read_values(spec_, row(key).data(), values);
    return values;
  }
  void step(const Push& push, const Arguments& arguments) {
    std::map<std::uint64_t, std::vector<float>> sums;
    for (std::size_t i = 0; i < push.keys.size(); ++i) {
      const std::span<const float> each(push.gradients.data() + i * spec_.values, spec_.values);
      const auto [sum, is_new] = sums.try_emplace(push.keys[i], each.begin(), each.end());
      if (is_new) continue;
      for (std::size_t v = 0; v < spec_.values; ++v) sum->second[v] += each[v];
    }
    const Update update(spec_, arguments);
    ++version_;
    for (const auto& [key, sum] : sums) {
      auto changed = row(key);
      update.apply(changed.data(), sum.data());
      rows_[key] = changed;
      ages_[key] = version_;
    }
    std::erase_if(rows_,
                  [&](const auto& entry) { return ages_[entry.first] < arguments.evicts_before; });
  }
  // The table's part of Tables::digest(), if it is table t.
  [[nodiscard]] std::uint64_t digest(std::size_t t) const {
    std::uint64_t sum = 0;
    for (const auto& [key, row] : rows_) sum += holdfast::digest(row, derive(t, key));
    return sum;
  }
  [[nodiscard]] std::vector<std::uint64_t> keys() const {
    std::vector<std::uint64_t> all;
    for (const auto& [key, row] : rows_) all.push_back(key);
    return all;
  }

 private:
  Spec spec_;
  Beginning beginning_;
  Version version_ = 0;
  std::map<std::uint64_t, Version> ages_;
  std::map<std::uint64_t, std::vector<std::byte>> rows_;
};

// Whether table t holds the reference's rows, and reads like it for other keys.
inline bool same(const Tables& tables, std::size_t t, const Reference& reference) {
  const auto keys = reference.keys();
  if (tables.keys(t) != keys) return false;
  std::vector<std::uint64_t> asked = keys;
  asked.push_back(123'456'789);
  std::vector<float> got(asked.size() * tables.specs()[t].values);
  tables.read(t, asked, got);
  std::vector<float> want;
  for (const std::uint64_t key : asked) {
    const auto values = reference.values(key);
    want.insert(want.end(), values.begin(), values.end());
  }
  return std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0;
}

}  // namespace holdfast::table::testing
