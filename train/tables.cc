#include "train/tables.h"

#include <limits>
#include <span>
#include <string>
#include <tuple>

#include "base/text.h"
#include "train/job.h"

namespace holdfast {

namespace train {
namespace {

using Rule = TableOptions::Rule;
using TableRule = table::Optimizer::Rule;

table::Spec spec_of(const TableOptions& o) {
  const bool is_sparse = o.rule == Rule::kSparseAdam;
  const auto rule = is_sparse ? TableRule::kAdam : static_cast<TableRule>(o.rule);
  return {.name = o.name,
          .values = o.values,
          .type = o.bfloat16 ? table::Type::kBfloat16 : table::Type::kFloat32,
          .optimizer = {.rule = rule,
                        .formula = is_sparse ? table::Formula::kMindSpore : table::Formula::kTorch,
                        .nesterov = o.nesterov,
                        .momentum = o.momentum,
                        .beta1 = o.beta1,
                        .beta2 = o.beta2,
                        .epsilon = o.epsilon,
                        .l1 = o.l1,
                        .l2 = o.l2,
                        .initial_accumulator = o.initial_accumulator},
          .initial = {table::Initial::Kind::kNormal, o.mean, o.deviation},
          .seed = o.seed};
}
// Up to kFtrl the two have the same values.
static_assert(static_cast<int>(Rule::kFtrl) == static_cast<int>(TableRule::kFtrl));
static_assert(static_cast<int>(Rule::kRowAdagrad) == static_cast<int>(TableRule::kRowAdagrad));

std::span<const std::uint64_t> keys_in(const torch::Tensor& ids) {
  return {reinterpret_cast<const std::uint64_t*>(ids.data_ptr<std::int64_t>()),
          static_cast<std::size_t>(ids.numel())};
}
std::span<float> floats_in(const torch::Tensor& rows) {
  return {rows.data_ptr<float>(), static_cast<std::size_t>(rows.numel())};
}

torch::Tensor checked(const TableOptions& o, const torch::Tensor& ids) {
  if (!torch::isIntegralType(ids.scalar_type(), false)) {
    throw Failure(cat("table ", o.name, " was asked for ids that are no whole numbers"));
  }
  auto flat = ids.reshape({-1}).to(torch::kLong).contiguous();
  if (flat.numel() == 0) return flat;
  const auto least = flat.min().item<std::int64_t>();
  const auto most = flat.max().item<std::int64_t>();
  if (least < 0 || (o.rows != 0 && most >= o.rows)) {
    throw Failure(cat("table ", o.name, " was asked for id ", least < 0 ? least : most,
                      "; allowed is 0 to ",
                      o.rows != 0 ? o.rows - 1 : std::numeric_limits<std::int64_t>::max()));
  }
  return flat;
}

// Whether all was exchanged. If a fault came instead, the step will be void.
bool is_done(const collective::Verdict& verdict) {
  if (verdict.outcome == collective::Outcome::kDone) return true;
  if (verdict.outcome == collective::Outcome::kAborted) return false;
  throw Failure(verdict.why);
}

}  // namespace

torch::Tensor Table::pull(const torch::Tensor& ids) {
  if (!in_body) {
    throw Failure(cat("table ", options.name,
                      " was asked for rows outside of a step: pull() comes ",
                      "in the bodies of state.steps()"));
  }
  const auto [keys, places] = torch::_unique(checked(options, ids), true, true);
  const auto rows = torch::zeros({keys.numel(), std::int64_t{options.values}});
  if (!is_done(session->tables()->pull(number, keys_in(keys), floats_in(rows)))) rows.zero_();
  if (torch::GradMode::is_enabled()) {
    rows.set_requires_grad(true);
    pulled.emplace_back(keys, rows);
  }
  auto shape = ids.sizes().vec();
  shape.push_back(options.values);
  return torch::embedding(rows, places).reshape(shape);
}

void Table::evict(std::uint64_t steps) {
  if (!in_body) {
    throw Failure(cat("rows of table ", options.name, " are to be evicted outside of a step: ",
                      "evict() comes in the bodies of state.steps()"));
  }
  detail::must(session->tables()->evict(number, steps));
}

void Table::push(Version n) {
  auto& tables = *session->tables();
  const double rate = options.schedule ? options.schedule(n) : options.learning_rate;
  detail::must(tables.set(number, rate, options.weight_decay));
  auto keys = torch::empty({0}, torch::kLong);
  auto gradients = torch::empty({0, std::int64_t{options.values}});
  for (const auto& [its, rows] : std::exchange(pulled, {})) {
    if (!rows.grad().defined()) continue;
    keys = torch::cat({keys, its});
    gradients = torch::cat({gradients, rows.grad()});
  }
  // Also without a row, for the others may have some.
  (void)is_done(detail::must(tables.push(number, keys_in(keys), floats_in(gradients))));
}

std::shared_ptr<Table> Tables::add(TableOptions options) {
  if (is_open_) {
    throw Failure(cat("table ", options.name, " comes too late: make it before the first steps()"));
  }
  tables_.push_back(std::make_shared<Table>(Table{.options = std::move(options)}));
  return tables_.back();
}

void Tables::open(runtime::Session& session) {
  is_open_ = true;
  for (const auto& table : tables_) {
    if (session.tables() == nullptr) {
      throw Failure(cat("table ", table->options.name, " needs parameter servers, and the job has ",
                        "none: start it with some (msrun --server_num=1)"));
    }
    table->number = detail::must(session.tables()->define(spec_of(table->options)));
    table->session = &session;
  }
}

void Tables::begin_body() {
  for (const auto& table : tables_) {
    table->pulled.clear();
    table->in_body = true;
  }
}

void Tables::end_body(Version n) {
  // A table that no step has used is left alone: Adam counts the steps in which it was.
  for (const auto& table : tables_) {
    if (!table->pulled.empty()) table->push(n);
  }
  leave_body();
}

void Tables::leave_body() {
  for (const auto& table : tables_) table->in_body = false;
}

}  // namespace train

Table::Table(State& state, TableOptions options) : table_(state.tables().add(std::move(options))) {}

void Table::evict(std::uint64_t steps) {
  table_->evict(steps);
}
torch::Tensor Table::pull(const torch::Tensor& ids) {
  return table_->pull(ids);
}

}  // namespace holdfast
