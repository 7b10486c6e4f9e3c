// The tables of a parameter server as a StateStore.
#pragma once

#include <vector>

#include "runtime/worker/session.h"
#include "runtime/worker/state_store.h"
#include "table/tables.h"

namespace holdfast::runtime {

// For Session::open: opens this server's tables in the job's folder, once no thread of its
// predecessor can write to them (ownership.h). Errors: those of take_ownership() and Tables::open.
//
// Only this server has its tables: nothing is copied, to or from another host. stage() expects that
// the step was staged in the tables already.
[[nodiscard]] OpenStore in_tables(std::vector<table::Spec> specs);

// Requires: the session was opened in_tables().
[[nodiscard]] table::Tables& tables_of(Session& session);

}  // namespace holdfast::runtime
