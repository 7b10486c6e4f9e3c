// What a table of parameters is: how long its rows are, how a row that nobody has written begins,
// and by which rule rows are updated.
//
// A table maps keys (64 bits) to rows. A dense parameter is a table, too: its rows are pieces of
// it, with keys from 0 on, and each step touches all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace holdfast::table {

inline constexpr std::uint32_t kMostValues = 4096;  // Of a row.
inline constexpr std::size_t kMostTables = 64;      // Of one server.

enum class Type : std::uint8_t { kFloat32, kBfloat16 };

// The values of a row that nobody has written: a function of (seed, the table's name, key) alone.
struct Initial {
  enum class Kind : std::uint8_t {
    kConstant,  // a
    kUniform,   // from a on, below b
    kNormal,    // mean a, standard deviation b
  };
  Kind kind = Kind::kConstant;
  double a = 0;
  double b = 0;
  bool operator==(const Initial&) const = default;
};

// Whose formula, where the frameworks differ (rules.h).
enum class Formula : std::uint8_t { kTorch, kMindSpore };

struct Optimizer {
  enum class Rule : std::uint8_t {
    kSgd,
    kMomentum,
    kAdagrad,
    kRowAdagrad,  // One accumulator for each row.
    kAdam,        // Of the touched rows alone: "lazy" or "sparse" Adam. All rows touched: Adam.
    kAdamW,
    kFtrl,
  };
  Rule rule = Rule::kSgd;
  Formula formula = Formula::kTorch;
  bool nesterov = false;           // kMomentum
  double momentum = 0;             // kMomentum
  double beta1 = 0.9;              // kAdam, kAdamW
  double beta2 = 0.999;            // kAdam, kAdamW
  double epsilon = 1e-8;           // kAdam, kAdamW, kAdagrad, kRowAdagrad
  double l1 = 0;                   // kFtrl
  double l2 = 0;                   // kFtrl
  double power = -0.5;             // kFtrl: the learning rate's; no other one yet.
  double initial_accumulator = 0;  // kAdagrad, kRowAdagrad, kFtrl
  bool operator==(const Optimizer&) const = default;
};

struct Spec {
  std::string name;          // As a person knows it; no two tables of a job have the same.
  std::uint32_t values = 0;  // Of a row: 1 to kMostValues.
  Type type = Type::kFloat32;
  Optimizer optimizer;
  Initial initial;
  std::uint64_t seed = 0;
  bool operator==(const Spec&) const = default;

  // float32 values of the optimizer's own beside each row.
  [[nodiscard]] std::size_t state_floats() const;
  // A row's values begin its bytes; from state_offset() on lies the optimizer's state.
  [[nodiscard]] std::size_t value_bytes() const;
  [[nodiscard]] std::size_t state_offset() const;
  [[nodiscard]] std::size_t row_bytes() const;
};

// Errors (kUser): a name, a size or a number that cannot be, with the table's name and what may be.
[[nodiscard]] Status check(std::span<const Spec> specs);

// As text, as it stands in a table file, and back. from_text() gives false for bytes that to_text()
// did not write.
[[nodiscard]] std::string to_text(std::span<const Spec> specs);
[[nodiscard]] bool from_text(const std::string& text, std::vector<Spec>& out);

// As a person knows them: "float32", "Adam".
[[nodiscard]] std::string name_of(Type type);
[[nodiscard]] std::string name_of(Optimizer::Rule rule);

// Names the first difference in one clause: "table users has 16 values in a row there and 32 here".
// Empty if they are equal.
[[nodiscard]] std::string difference(std::span<const Spec> there, std::span<const Spec> here);

}  // namespace holdfast::table
