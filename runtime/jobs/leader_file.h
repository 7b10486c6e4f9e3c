// The leader file says where the job's scheduler is, if etcd decides that. It lies in the job's
// folder on each host, and the scheduler that stands by on that host keeps it up to date.
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
// nullopt: the file is missing or damaged.
std::optional<SchedulerAddress> read_leader_file(const std::string& directory);

// Where a process of the job finds its scheduler now. With etcd: at the address in the leader file.
// Without etcd, or while there is no such file: at MS_SCHED_HOST and MS_SCHED_PORT.
SchedulerAddress scheduler_of(const config::Settings& settings);

io::EtcdOptions etcd_options(const config::Settings& settings);

}  // namespace holdfast::runtime
