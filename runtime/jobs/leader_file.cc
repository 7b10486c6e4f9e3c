#include "runtime/jobs/leader_file.h"

#include "base/number.h"
#include "base/text.h"
#include "os/files.h"
#include "os/folder.h"
#include "os/host.h"

namespace holdfast::runtime {
namespace {

constexpr const char* kLeaderFile = "leader";

}  // namespace

// The file is one line: host, port, term. For example "10.0.0.2 8118 17".
Status write_leader_file(const std::string& directory, const SchedulerAddress& address) {
  const auto folder = os::open_runtime_directory(directory);
  if (!folder) return folder.error();
  if (!*folder) return {};  // No process of the job is on this host.
  return folder->write(kLeaderFile, cat(address.host, ' ', address.port, ' ', address.term, '\n'));
}

std::optional<SchedulerAddress> read_leader_file(const std::string& directory) {
  const auto folder = os::open_runtime_directory(directory);
  if (!folder || !*folder) return std::nullopt;
  const auto read = folder->read_if_there(kLeaderFile);
  if (!read || !*read) return std::nullopt;
  const auto& text = *read;
  if (!text->ends_with('\n')) return std::nullopt;
  const auto first = text->find(' ');
  const auto second = text->find(' ', first + 1);
  if (first == 0 || first == std::string::npos || second == std::string::npos) return std::nullopt;
  const std::string_view all = *text;
  SchedulerAddress address{.host = text->substr(0, first)};
  const bool whole = read_number(all.substr(first + 1, second - first - 1), address.port) &&
                     read_number(all.substr(second + 1, all.size() - second - 2), address.term);
  return whole ? std::optional(std::move(address)) : std::nullopt;
}

SchedulerAddress scheduler_of(const config::Settings& settings) {
  if (!settings.etcd.empty()) {
    if (auto address = read_leader_file(os::runtime_path(settings.job))) return *std::move(address);
  }
  return {settings.sched_host, settings.sched_port, 0};
}

io::EtcdOptions etcd_options(const config::Settings& settings) {
  return {settings.etcd, settings.etcd_ca, settings.etcd_cert, settings.etcd_key};
}

}  // namespace holdfast::runtime
