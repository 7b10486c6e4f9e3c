// The worker's part of c.h, and what belongs to no handle.
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "base/text.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "config/settings.h"
#include "runtime/scheduler/scheduler.h"

using namespace holdfast;
using capi::report;
using capi::user_error;

extern "C" {

uint32_t hf_abi_version(void) {
  return HF_ABI_VERSION;
}

const char* hf_last_error(void) {
  return capi::last_error();
}

hf_status hf_start(hf_worker** worker) {
  if (worker == nullptr) return report(user_error("hf_start() needs somewhere to put the worker"));
  auto settings = config::from_environment(environ);
  if (!settings) return report(settings.error());
  if (settings->role == config::Role::kScheduler) std::exit(runtime::serve(*settings));
  auto started = runtime::Worker::start(*settings);
  if (!started) return report(started.error());
  *worker = new hf_worker;
  (*worker)->worker = *std::move(started);
  return HF_OK;
}

void hf_stop(hf_worker* worker) {
  delete worker;
}

int hf_is_solo(const hf_worker* worker) {
  return worker->worker->solo() ? 1 : 0;
}

int hf_waits_spare(const hf_worker* worker) {
  return worker->worker->waits_spare() ? 1 : 0;
}

int32_t hf_bound_rank(const hf_worker* worker) {
  return worker->worker->bound_rank();
}

hf_status hf_identity(hf_worker* worker, hf_place* place) {
  const auto identity = worker->worker->identity();
  if (!identity) return report(identity.error());
  const config::Settings& settings = worker->worker->settings();
  if (settings.attempt > 1 && worker->directory.empty()) {
    if (const Status told = capi::end_early(*identity); !told) return report(told.error());
  }
  worker->node_id = settings.node_id;
  worker->directory = identity->directory;
  worker->job = settings.job;
  if (place == nullptr) return HF_OK;
  *place = {.rank = identity->rank,
            .world_size = identity->world_size,
            .run_id = identity->run_id,
            .attempt = settings.attempt,
            .node_id = worker->node_id.c_str(),
            .directory = worker->directory.c_str(),
            .job = worker->job.c_str()};
  return HF_OK;
}

hf_status hf_fail(hf_worker* worker, const char* reason) {
  report(worker->worker->fail(reason == nullptr ? "the training failed" : reason));
  return HF_WORLD;
}

hf_status hf_early_group_open(hf_worker* worker, const int32_t* ranks, uint64_t count,
                              const char* name, hf_group** group) {
  if (worker->opened) {
    return report(user_error("an early group after hf_open(): use hf_group_open()"));
  }
  const auto identity = worker->worker->identity();
  if (!identity) return report(identity.error());
  if (!worker->early) {
    auto early = capi::Early::begin(*identity, worker->worker->settings().topo_timeout);
    if (!early) return report(early.error());
    worker->early = *std::move(early);
    worker->worker->on_stop([early = worker->early.get()](Generation) {
      early->end();
      return true;
    });
  }
  return capi::open_group(worker->early->current(), *identity, ranks, count, name, "early-", group);
}

}  // extern "C"
