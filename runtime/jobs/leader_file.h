// Where the job's scheduler is, where etcd decides it: a file in the job's folder on each host. The
// scheduler that stands by there keeps it true.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "config/settings.h"
#include "io/etcd.h"

namespace holdfast::runtime {

struct SchedulerAddress {
  std::string host;
  std::uint16_t port = 0;
  std::int64_t term = 0;  // Grows with each scheduler; 0: none is known.
  bool operator==(const SchedulerAddress&) const = default;
};

Status write_leader_file(const std::string& directory, const SchedulerAddress& address);
// Nothing: it is not there.
std::optional<SchedulerAddress> read_leader_file(const std::string& directory);

// Where a process of the job finds its scheduler now: in that file, if etcd decides it; else where
// MS_SCHED_HOST and MS_SCHED_PORT say.
SchedulerAddress scheduler_of(const config::Settings& settings);

io::EtcdOptions etcd_options(const config::Settings& settings);

}  // namespace holdfast::runtime
