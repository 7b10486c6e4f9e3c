// What a parameter server does: it keeps the tables that the workers define, and takes part in
// their steps until the training ends.
#pragma once

#include "base/result.h"
#include "runtime/worker/worker.h"

namespace holdfast::runtime {

// Requires: the worker's place is a server's. Returns when the training has ended in good order.
// Error: the job is over, or can not go on.
[[nodiscard]] Status serve_tables(Worker& worker);

}  // namespace holdfast::runtime
