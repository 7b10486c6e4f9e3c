// The tables of a parameter server as a StateStore.
//
// A server also holds the tables of the servers whose holder it is (planner::holders): it takes the
// same pushes as they do and makes the same updates, in a file of its own. So the loss of a
// server's host costs no row, if servers lie on several hosts. What is held is fetched whole only
// when a generation is formed in which the holder does not have it yet.
#pragma once

#include <vector>

#include "base/ids.h"
#include "runtime/worker/session.h"
#include "runtime/worker/state_store.h"
#include "runtime/worker/table_setup.h"
#include "table/tables.h"

namespace holdfast::runtime {

// For Session::open: opens this server's tables in the job's folder, once no thread of its
// predecessor can write to them (ownership.h). Errors: those of take_ownership() and Tables::open.
//
// stage() expects that the step was staged in all kept_tables() already.
[[nodiscard]] OpenStore in_tables(TableSetup setup);

// All of the below require: the session was opened in_tables().
[[nodiscard]] table::Tables& tables_of(Session& session);

struct Kept {
  Rank server = 0;  // Its number among the servers.
  table::Tables* tables = nullptr;
};
// The own tables first, then those that are held for others. Valid until the group changes.
[[nodiscard]] std::vector<Kept> kept_tables(Session& session);

}  // namespace holdfast::runtime
