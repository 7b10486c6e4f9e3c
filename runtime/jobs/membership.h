// What a process proves to the others of its job by: the job's token, and its certificate.
#pragma once

#include <string>

#include "base/result.h"
#include "config/settings.h"
#include "io/connection.h"

namespace holdfast::runtime {

// For a process that connects to its job's scheduler as `kind`. Cheap: call it before each try,
// because the token may be another one by then.
//
// Errors name the file and what is wrong with it. The blame is the world's if the scheduler has not
// made it yet.
Result<io::Membership> membership_of(const config::Settings& settings, wire::PeerKind kind);

// Proves nothing, and takes no proof. For a process that has no token, and wants to know whether
// anybody listens at all.
io::Membership membership_of_nobody(const config::Settings& settings, wire::PeerKind kind);

// For the scheduler; `directory` is the job's runtime folder. Draws the job's token, and leaves it
// there, unless the user has given one.
Result<io::Membership> membership_of_scheduler(const config::Settings& settings,
                                               const std::string& directory);

// For a process that belongs to no job, and looks at the one with this runtime folder.
Result<io::Membership> membership_of_observer(const config::Settings& settings,
                                              const std::string& directory);

// For the agent, before anything has begun. Errors: the file of HOLDFAST_TOKEN_FILE is no good.
// By which two jobs of one name are told apart, where no secret is to be said. Empty: no token is
// given.
Result<std::string> token_mark(const config::Settings& settings);

Status check_token_file(const config::Settings& settings);

// Reads the settings of TLS and all files that they name, and asks for a password where it has to.
// Does nothing if TLS is not configured. Those above do it, too; call it to find a mistake before
// anything has begun.
Status check_tls(const config::Settings& settings, bool is_server);

}  // namespace holdfast::runtime
