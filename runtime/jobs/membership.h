// Membership: the token and the certificate by which a process proves that it belongs to its job.
#pragma once

#include <string>

#include "base/result.h"
#include "config/settings.h"
#include "io/connection.h"

namespace holdfast::runtime {

// For a process that connects to its job's scheduler as `kind`. Cheap: call it before each try,
// because the token may have changed.
//
// Errors name the file and what is wrong with it. The blame is kWorld if the scheduler has not made
// the file yet.
Result<io::Membership> membership_of(const config::Settings& settings, wire::PeerKind kind);

// A membership with a random token, which proves nothing. For a process that has no token and only
// wants to know whether a scheduler listens.
io::Membership membership_of_nobody(const config::Settings& settings, wire::PeerKind kind);

// For the scheduler; `directory` is the job's runtime folder. Unless the user has given a token,
// draws one and writes it into that folder.
Result<io::Membership> membership_of_scheduler(const config::Settings& settings,
                                               const std::string& directory);

// For a process of no job (`holdfast status`) that looks at the job with this runtime folder.
Result<io::Membership> membership_of_observer(const config::Settings& settings,
                                              const std::string& directory);

// The token of the job's status page. It comes from the job's token, so it is the same each time,
// and it gives no right but to look: nobody can find the job's token from it.
Result<std::string> page_token_of(const config::Settings& settings, const std::string& directory);

// A mark of the user's token, without the secret in it: it tells apart two jobs of one name. Empty:
// the user has given no token.
Result<std::string> token_mark(const config::Settings& settings);

// For the agent, before anything has begun. Errors: the file of HOLDFAST_TOKEN_FILE is unusable.
Status check_token_file(const config::Settings& settings);

// Reads the settings of TLS and all files that they name, and asks for a password if one is
// missing. Does nothing if TLS is not configured. The functions membership_of...() do the same:
// call this to find a mistake before anything has begun.
Status check_tls(const config::Settings& settings, bool is_server);

}  // namespace holdfast::runtime
