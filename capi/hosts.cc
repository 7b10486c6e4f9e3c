// The functions of c.h that say on which hosts the ranks of a job are.
#include <unistd.h>

#include <algorithm>
#include <string>

#include "capi/error.h"
#include "capi/handles.h"
#include "os/host.h"

using namespace holdfast;
using capi::report;
using capi::report_caught;
using capi::user_error;

namespace {

template <std::size_t N>
void write(char (&to)[N], const std::string& text) {
  std::copy_n(text.data(), std::min(text.size(), N - 1), to);  // `to` was all zeros before.
}

}  // namespace

extern "C" {

hf_status hf_local_rank(hf_worker* worker, int32_t* local_rank) try {
  const auto identity = worker->worker->identity();
  if (!identity) return report(identity.error());
  if (local_rank != nullptr) *local_rank = identity->local_rank;
  return HF_OK;
} catch (...) {
  return report_caught();
}

hf_status hf_hosts(hf_worker* worker, hf_group* group, hf_host* hosts) try {
  if (hosts == nullptr) return report(user_error("hf_hosts() needs somewhere to put the hosts"));
  hf_host mine{};
  mine.pid = ::getpid();
  write(mine.node_id, worker->worker->settings().node_id);
  write(mine.host, os::host_name());
  return hf_all_gather(group, &mine, sizeof(mine), hosts, nullptr);
} catch (...) {
  return report_caught();
}

}  // extern "C"
