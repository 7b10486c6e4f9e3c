// The commands of `holdfast`. Each returns the exit code.
#pragma once

#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "runtime/jobs/job_files.h"

namespace holdfast::apps {

// `holdfast run` and msrun, whichever is `name`: reads the arguments that follow the command, and
// runs the agent.
int launch(const std::string& name, int argc, const char* const* argv,
           const char* const* environment);

// `holdfast status`: prints the state of the job (of the only one that runs, if `job` is empty), as
// JSON where asked. 1 where it does not run or does not answer; 2 where there are several and none
// is named.
int status(const std::string& job, bool json);

// The JSON of the scheduler's wire::StatusReply. Requires what ask_scheduler() does.
Result<std::string> query_status(const runtime::FoundJob& job, Duration timeout);

// `holdfast drain FROM` (`drains`) and `holdfast move FROM TO`: the ranks of host `from` go to host
// `to`, or to whichever would take them. Returns once that is decided, at the next step's boundary.
// 1 where it can not be, and says why.
int move(const std::string& job, const std::string& from, const std::string& to, bool drains,
         int timeout_s);

// `holdfast clean`: removes what dead jobs of this user have left on this host. Says what it
// removes, or would remove (`dry_run`), and what it leaves alone. 1 where something could not be
// removed, or where a job's folder would be is something else than a folder of this user alone.
int clean(bool dry_run);

// `holdfast verify`: becomes python/holdfast/verify, which proves that a program goes on with the
// same bits after faults, with the arguments that follow the command. Returns only where there is
// no Python.
int verify(int argc, const char* const* argv);

}  // namespace holdfast::apps
