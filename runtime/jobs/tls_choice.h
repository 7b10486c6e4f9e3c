// Which TLS a process of a job uses: what its environment says, else what its program says, else
// what the job's scheduler has left for it in the job's runtime folder.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "config/settings.h"
#include "tls/context.h"
#include "tls/password.h"

namespace holdfast::runtime {

// The program says it, before this process connects or serves: the words of MindSpore's
// set_ps_context. An empty password comes from where the settings say. Checks all that this process
// will prove itself with; its passwords are kept no longer than they are needed. Thread-safe.
//
// Errors (Blame::kUser): those of tls::Context::make() and tls::password_of(); the environment or
// an earlier call names another configuration; a password has more than one line; this process
// speaks with its scheduler in the clear already. A program may catch the error and go on. But
// unless a later call succeeds, this process neither connects nor serves in the clear any more.
Status choose_tls(const config::Settings& settings, const std::string& config_path,
                  const tls::Password& client, const tls::Password& server);

// A connection in the clear stands. False: it must not, because choose_tls() was called meanwhile.
bool may_stay_in_the_clear();

// The settings with what the program has said. Errors: that could not be done, and so this process
// would speak in the clear, though its program wants TLS.
Result<config::Settings> with_program_tls(config::Settings settings);

// The same, or else with what leave_tls() has left in the job's runtime folder.
Result<config::Settings> with_tls(const config::Settings& settings, const std::string& directory);

// For the scheduler, whose settings are those of with_program_tls(): leaves in the job's folder
// what an agent, `holdfast status` and a waiting spare need, who do not run the program. Without
// TLS it removes what a predecessor has left.
Status leave_tls(const config::Settings& settings, const std::string& directory);

// What `role` needs, made once for each role and configuration: a password can be asked for only
// once. Null: TLS is not configured.
Result<std::shared_ptr<tls::Context>> tls_context_of(const config::Settings& settings,
                                                     tls::Role role);

}  // namespace holdfast::runtime
