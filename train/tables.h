// Tables: those of one State. They are defined when the session is opened, and the gradients of
// what was pulled in a step are pushed at its end.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "holdfast/table.h"
#include "runtime/worker/session.h"

namespace holdfast::train {

struct Table {
  TableOptions options;
  std::size_t number = 0;
  runtime::Session* session = nullptr;  // Null until it is open.
  bool in_body = false;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> pulled;  // Ids and rows, in this body.

  torch::Tensor pull(const torch::Tensor& ids);
  void evict(std::uint64_t steps);
  void push(Version n);
};

class Tables {
 public:
  std::shared_ptr<Table> add(TableOptions options);
  void open(runtime::Session& session);
  void begin_body();
  void end_body(Version n);  // Pushes the gradients of step n.
  void leave_body();

 private:
  std::vector<std::shared_ptr<Table>> tables_;
  bool is_open_ = false;
};

}  // namespace holdfast::train
