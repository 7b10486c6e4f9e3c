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

// Sets the program's TLS, before this process connects or serves. The parameters are those of
// MindSpore's set_ps_context. An empty password comes from where the settings say. Checks the
// certificate and the key that this process will use; keeps its passwords no longer than they are
// needed. Thread-safe.
//
// Errors (Blame::kUser): those of tls::Context::make() and tls::password_of(); the environment or
// an earlier call names another configuration; a password has more than one line; this process
// speaks with its scheduler in the clear already. A program may catch the error and go on. But
// unless a later call succeeds, this process neither connects nor serves in the clear any more.
Status choose_tls(const config::Settings& settings, const std::string& config_path,
                  const tls::Password& client, const tls::Password& server);

// Call it when a connection in the clear has been made. False: it must not be used, because
// choose_tls() was called meanwhile.
bool may_stay_in_the_clear();

// The settings with the program's choice. Errors: choose_tls() failed, so this process would speak
// in the clear though its program wants TLS.
Result<config::Settings> with_program_tls(config::Settings settings);

// As with_program_tls(); if that names no TLS, with what leave_tls() has left in the job's runtime
// folder.
Result<config::Settings> with_tls(const config::Settings& settings, const std::string& directory);

// Leaves in the job's folder the TLS of processes that do not run the program: an agent, `holdfast
// status`, a waiting spare. Called by the scheduler, with the settings of with_program_tls(), and
// by agents on other hosts. Without TLS it removes what a predecessor has left.
Status leave_tls(const config::Settings& settings, const std::string& directory);

// The TLS context of `role`, made once for each role and configuration, because a password can be
// asked for only once. Null: TLS is not configured.
Result<std::shared_ptr<tls::Context>> tls_context_of(const config::Settings& settings,
                                                     tls::Role role);

}  // namespace holdfast::runtime
