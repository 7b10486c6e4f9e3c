// The addresses file: where the ranks of a job on several hosts are. It lies in the job's folder on
// each host. The host's agent writes it, and the workers look into it.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "wire/messages.h"

namespace holdfast::runtime {

// Several agents of the job on one host may write the file: all write the same.
Status write_addresses_file(const std::string& directory, const wire::Addresses& addresses);
// nullopt: the file is missing, or can not be read.
std::optional<wire::Addresses> read_addresses_file(const std::string& directory);

}  // namespace holdfast::runtime
