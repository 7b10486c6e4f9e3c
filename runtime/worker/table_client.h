// TableClient: a worker's way to the tables of the job's parameter servers.
//
// All workers define the same tables before the first step, and then make the same calls in the
// same order; the keys may differ. Calls come between begin_step() and end_step(), as those of a
// group. A table is the same in all workers during a step; what is pushed is in it after the step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "collective/current_generation.h"
#include "collective/group.h"
#include "collective/outcome.h"
#include "runtime/worker/table_exchange.h"
#include "runtime/worker/worker.h"
#include "table/rules.h"
#include "table/spec.h"

namespace holdfast::runtime {

class TableClient {
 public:
  TableClient(Worker& worker, const Identity& identity,
              std::shared_ptr<collective::CurrentGeneration> current);

  // Defines a table; returns its number. Errors (kUser): what table::check() refuses; the first
  // step has begun.
  [[nodiscard]] Result<std::size_t> define(table::Spec spec);
  [[nodiscard]] const std::vector<table::Spec>& specs() const { return specs_; }
  // What the updates of the table use from the step under way on. The same in all workers. (The
  // servers count the updates: the steps with a push to the table.)
  // Error (kUser): numbers that make no sense.
  [[nodiscard]] Status set(std::size_t t, double learning_rate, double weight_decay);

  // Has the step under way evict the rows of a table that were updated last more than `steps` steps
  // ago: they begin anew when they are used again. Only steps with a push to the table count, this
  // one included. The same in all workers. Forgotten when a step begins.
  // Error (kUser): 0 steps.
  [[nodiscard]] Status evict(std::size_t t, std::uint64_t steps);

  // Fills `out` with the rows of these keys, Spec::values each. A key may come several times.
  [[nodiscard]] collective::Verdict pull(std::size_t t, std::span<const std::uint64_t> keys,
                                         std::span<float> out);
  // Adds gradients, Spec::values for each key, to what the step does. Gradients of the same key are
  // summed, first those of a worker in their order, then these sums in the order of the workers.
  // Error (kUser): a gradient that is no finite number, with its key; nothing is exchanged then.
  [[nodiscard]] Result<collective::Verdict> push(std::size_t t, std::span<const std::uint64_t> keys,
                                                 std::span<const float> gradients);

  // As push(), of values with which rows begin: each row of these keys has them after the step, and
  // its optimizer's state and Adam's count begin anew. For each key one worker gives the values.
  // Error (kUser): also if the step has gradients for the table, as push() if it has first values.
  [[nodiscard]] Result<collective::Verdict> assign(std::size_t t,
                                                   std::span<const std::uint64_t> keys,
                                                   std::span<const float> values);

  // The tables begin with the rows saved in a folder. Error (kUser): the first step has begun.
  [[nodiscard]] Status load_from(const std::string& folder);
  // Has each server save its rows of version `n`, the committed one, in a folder; then the first
  // worker writes the manifest (table/saved.h). Returns when it is there. Errors, the same in all
  // workers: what a server or the first worker could not do.
  [[nodiscard]] Result<collective::Verdict> save(const std::string& folder, Version n);

  // For Session: tells the servers which tables there are. All workers have to have the same.
  [[nodiscard]] Status publish();
  // The group of all ranks in this generation; null: there is none now.
  void meet_in(std::shared_ptr<collective::Group> everyone) {
    everyone_ = std::move(everyone);
    sent_.clear();
    evicts_.clear();
  }
  // The workers give the step under way up, in a generation that goes on.
  void give_up();
  // Has the servers stage step `n`.
  [[nodiscard]] collective::Verdict end_step(Version n);

 private:
  // Keys without those that come again, by server, each server's in the order in which they come.
  struct Batch {
    std::vector<std::uint64_t> keys;
    std::vector<std::uint32_t> places;  // By key as it came: its place in `keys`.
    std::vector<std::uint64_t> counts;  // By server.
  };
  [[nodiscard]] Batch batch_of(std::span<const std::uint64_t> keys) const;
  [[nodiscard]] Result<collective::Verdict> send(TableCall call, std::size_t t,
                                                 std::span<const std::uint64_t> keys,
                                                 std::span<const float> given);

  Worker& worker_;
  const Rank rank_;
  const std::uint64_t run_id_;
  const Rank workers_;
  const Rank servers_;
  const std::shared_ptr<collective::CurrentGeneration> current_;
  std::vector<table::Spec> specs_;
  std::string from_;                         // As in TableSetup.
  std::vector<table::Arguments> arguments_;  // By table.
  std::shared_ptr<collective::Group> everyone_;
  bool is_published_ = false;
  // By table: what was sent to it in the step under way. The same in all workers; what set() has
  // set is not, in a process that has sent nothing yet.
  std::vector<TableCall> sent_;
  std::map<std::size_t, std::uint64_t> evicts_;  // By table: the steps of evict() in this step.
};

}  // namespace holdfast::runtime
