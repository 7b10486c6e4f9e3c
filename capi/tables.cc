// The functions of c.h for the tables of parameter servers.
#include "base/text.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "table/spec.h"

using namespace holdfast;
using capi::report;
using capi::report_caught;
using capi::user_error;

namespace {

using Rule = table::Optimizer::Rule;
using Kind = table::Initial::Kind;

// The enumerators of c.h have the values of those of table/spec.h.
static_assert(static_cast<int>(Rule::kSgd) == HF_RULE_SGD);
static_assert(static_cast<int>(Rule::kMomentum) == HF_RULE_MOMENTUM);
static_assert(static_cast<int>(Rule::kAdagrad) == HF_RULE_ADAGRAD);
static_assert(static_cast<int>(Rule::kRowAdagrad) == HF_RULE_ROW_ADAGRAD);
static_assert(static_cast<int>(Rule::kAdam) == HF_RULE_ADAM);
static_assert(static_cast<int>(Rule::kAdamW) == HF_RULE_ADAMW);
static_assert(static_cast<int>(Rule::kFtrl) == HF_RULE_FTRL);
static_assert(static_cast<int>(Kind::kConstant) == HF_CONSTANT);
static_assert(static_cast<int>(Kind::kUniform) == HF_UNIFORM);
static_assert(static_cast<int>(Kind::kNormal) == HF_NORMAL);

Result<table::Spec> spec_of(const hf_table& t) {
  const bool is_known = (t.dtype == HF_FLOAT32 || t.dtype == HF_BFLOAT16) &&
                        t.rule <= HF_RULE_FTRL && t.initial <= HF_NORMAL;
  if (t.name == nullptr || !is_known) {
    return user_error(cat("a table needs a name, dtype HF_FLOAT32 or HF_BFLOAT16, an hf_rule and ",
                          "an hf_initial; this one has dtype ", t.dtype, ", rule ", t.rule,
                          " and initial ", t.initial));
  }
  return table::Spec{.name = t.name,
                     .values = t.values,
                     .type = t.dtype == HF_FLOAT32 ? table::Type::kFloat32 : table::Type::kBfloat16,
                     .optimizer = {.rule = static_cast<Rule>(t.rule),
                                   .formula = t.mindspore != 0 ? table::Formula::kMindSpore
                                                               : table::Formula::kTorch,
                                   .nesterov = t.nesterov != 0,
                                   .momentum = t.momentum,
                                   .beta1 = t.beta1,
                                   .beta2 = t.beta2,
                                   .epsilon = t.epsilon,
                                   .l1 = t.l1,
                                   .l2 = t.l2,
                                   .initial_accumulator = t.initial_accumulator},
                     .initial = {static_cast<Kind>(t.initial), t.initial_a, t.initial_b},
                     .seed = t.seed};
}

// The job's servers, as this session reaches them.
Result<runtime::TableClient*> tables_of(const hf_session* s) {
  if (runtime::TableClient* tables = s->session->tables()) return tables;
  return user_error(
      "the job has no parameter servers, which keep tables: start it with some (holdfast run "
      "--servers 1, msrun --server_num=1)");
}

// The same. Error: it has no such table.
Result<runtime::TableClient*> with_table(const hf_session* s, std::uint64_t number) {
  runtime::TableClient* tables = s->session->tables();
  if (tables != nullptr && number < tables->specs().size()) return tables;
  return user_error(cat("this session has no table ", number));
}

}  // namespace

extern "C" {

int32_t hf_servers(const hf_worker* worker) {
  return worker->worker->settings().server_num;
}

hf_status hf_table_define(hf_session* s, const hf_table* given, uint64_t* number) try {
  const auto tables = tables_of(s);
  if (!tables) return report(tables.error());
  const auto spec = spec_of(*given);
  if (!spec) return report(spec.error());
  const auto defined = (*tables)->define(*spec);
  if (!defined) return report(defined.error());
  *number = *defined;
  return HF_OK;
} catch (...) {
  return report_caught();
}

hf_status hf_table_set(hf_session* s, uint64_t table, double learning_rate,
                       double weight_decay) try {
  const auto tables = with_table(s, table);
  if (!tables) return report(tables.error());
  return report((*tables)->set(table, learning_rate, weight_decay));
} catch (...) {
  return report_caught();
}

hf_status hf_table_evict(hf_session* s, uint64_t table, uint64_t steps) try {
  const auto tables = with_table(s, table);
  if (!tables) return report(tables.error());
  return report((*tables)->evict(table, steps));
} catch (...) {
  return report_caught();
}

hf_status hf_table_pull(hf_session* s, uint64_t table, const uint64_t* keys, uint64_t count,
                        float* rows) try {
  const auto tables = with_table(s, table);
  if (!tables) return report(tables.error());
  const std::size_t values = (*tables)->specs()[table].values;
  return report(
      Result<collective::Verdict>((*tables)->pull(table, {keys, count}, {rows, count * values})));
} catch (...) {
  return report_caught();
}

hf_status hf_table_push(hf_session* s, uint64_t table, const uint64_t* keys, uint64_t count,
                        const float* gradients) try {
  const auto tables = with_table(s, table);
  if (!tables) return report(tables.error());
  const std::size_t values = (*tables)->specs()[table].values;
  return report((*tables)->push(table, {keys, count}, {gradients, count * values}));
} catch (...) {
  return report_caught();
}

hf_status hf_table_assign(hf_session* s, uint64_t table, const uint64_t* keys, uint64_t count,
                          const float* rows) try {
  const auto tables = with_table(s, table);
  if (!tables) return report(tables.error());
  const std::size_t values = (*tables)->specs()[table].values;
  return report((*tables)->assign(table, {keys, count}, {rows, count * values}));
} catch (...) {
  return report_caught();
}

hf_status hf_tables_load(hf_session* s, const char* folder) try {
  const auto tables = tables_of(s);
  return report(tables ? (*tables)->load_from(folder) : tables.error());
} catch (...) {
  return report_caught();
}

hf_status hf_tables_save(hf_session* s, const char* folder) try {
  const auto tables = tables_of(s);
  if (!tables) return report(tables.error());
  return report((*tables)->save(folder, s->session->version()));
} catch (...) {
  return report_caught();
}

}  // extern "C"
