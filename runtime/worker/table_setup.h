// TableSetup: what the workers of a job tell its parameter servers before the first step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "table/spec.h"

namespace holdfast::runtime {

struct TableSetup {
  std::vector<table::Spec> specs;
  std::string from;  // The folder of saved tables with whose rows they begin; empty: without rows.
};

// Which server has the row of a key. Keys that are multiples of something are not all of one.
[[nodiscard]] Rank server_of(std::uint64_t key, Rank servers);

// The key-value in which it stands.
inline constexpr const char* kTables = "holdfast.tables";

[[nodiscard]] std::string to_text(const TableSetup& setup);
// Error: the text is of another release.
[[nodiscard]] Result<TableSetup> setup_in(const std::string& text);

}  // namespace holdfast::runtime
