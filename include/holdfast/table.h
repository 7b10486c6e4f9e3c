// Table: rows of numbers by key, which the job's parameter servers keep and update: embeddings that
// are too large for each rank to have all of them, or that grow.
//
//   holdfast::Table users(state, {.name = "users", .values = 16});  // before the first steps()
//   for (auto& batch : state.steps(...)) {
//     auto rows = users.pull(batch.data);             // [n] whole numbers -> [n, 16]
//     state.step(loss_of(rows, batch.target));
//   }
//
// The gradient of what was pulled goes to the servers when the step is made. As that of a
// parameter, it is the mean over the ranks: each rank's gradients of a row are summed, in the order
// of its pulls, and then these sums in rank order. Rows that got no gradient stay as they are. A
// table is the same in all ranks during a step. It survives the death of any process with the same
// bits, and these do not depend on the number of servers. docs/parameter-server.md says what it
// does not survive.
//
// All ranks make the same tables in the same order, and pull from them alike; the ids may differ.
// All functions throw Failure; all are called by one thread, the one that called init().
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>

#include "holdfast/optimizer.h"
#include "holdfast/state.h"

namespace holdfast {

namespace train {
struct Table;
}

struct TableOptions {
  // The formulas are in table/rules.h. They touch only the rows of the step.
  enum class Rule : std::uint8_t {
    kSgd,
    kMomentum,
    kAdagrad,
    kRowAdagrad,  // One accumulator for each row.
    kAdam,        // As torch.optim.Adam and AdamW, of the touched rows alone.
    kAdamW,
    kFtrl,
    kSparseAdam,  // As torch.optim.SparseAdam.
  };
  std::string name;           // For people. No two tables have the same.
  std::int64_t rows = 0;      // The ids are 0 to rows - 1. 0: any id from 0 on.
  std::uint32_t values = 16;  // Of a row: 1 to 4096.
  bool bfloat16 = false;      // The rows are kept as bfloat16, and pulled as float32.
  Rule rule = Rule::kAdagrad;
  double learning_rate = 0.01;
  Schedule schedule;  // In place of learning_rate: a function of the number of the step.
  double weight_decay = 0;
  double momentum = 0.9;
  bool nesterov = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double l1 = 0;  // Of kFtrl, as the next.
  double l2 = 0;
  double initial_accumulator = 0;
  // A row that nobody has written has normal values, a function of (seed, name, id) alone.
  double mean = 0;
  double deviation = 1;
  std::uint64_t seed = 0;
};

class Table {
 public:
  // Before the State's first steps(). What makes no sense, or a job without servers, is a Failure
  // there; so are tables that differ between ranks.
  Table(State& state, TableOptions options);

  // The rows of `ids`, whole numbers in any shape: that shape, with the row's values behind it.
  // They are those of version(), which the step under way does not change. Only in a body of
  // steps(). With torch::NoGradGuard nothing is sent back. If a fault has come, the rows are zeros:
  // the step will be void, and the body runs again. So what a body finds out counts once its step
  // is made.
  [[nodiscard]] torch::Tensor pull(const torch::Tensor& ids);

  // Evicts, when the step under way is made, the rows whose last update was more than `steps` steps
  // ago: they begin anew when they are used again. Only steps that use the table count. Only in a
  // body of steps(), the same on all ranks.
  void evict(std::uint64_t steps);

 private:
  std::shared_ptr<train::Table> table_;
};

}  // namespace holdfast
