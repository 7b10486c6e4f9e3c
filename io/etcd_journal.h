// The journal of a job in etcd, for a scheduler that may be started again on any host.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "io/etcd.h"
#include "io/journal.h"

namespace holdfast::io {

// The keys of a job in etcd (docs/formats/etcd.md).
[[nodiscard]] std::string etcd_prefix(const std::string& job);  // The prefix of all of them.
// The job's scheduler; bound to its lease.
[[nodiscard]] std::string etcd_scheduler(const std::string& job);
[[nodiscard]] std::string etcd_head(const std::string& job);  // Exists as long as the journal does.

// The run to which the journal with this head belongs. nullopt: the head is damaged.
[[nodiscard]] std::optional<std::uint64_t> run_in_head(const EtcdEntry& head);

// `created`: the revision that made the key of this scheduler. Every write has the condition that
// this key is still there: a scheduler that has lost its lease is refused, and changes nothing.
//
// Changes that need more than one transaction (a roster of thousands, a value of megabytes) are
// written to new keys first. The last transaction puts them in force; without it nothing has
// changed.
std::unique_ptr<Journal> make_etcd_journal(Etcd etcd, const std::string& job, std::int64_t created);

}  // namespace holdfast::io
