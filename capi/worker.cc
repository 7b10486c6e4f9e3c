// The functions of c.h for a worker and its key-values, and those without a handle.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/text.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "collective/reduce.h"
#include "config/settings.h"
#include "config/without_effect.h"
#include "runtime/scheduler/scheduler.h"
#include "runtime/worker/rehearsal.h"
#include "runtime/worker/secure_channel.h"

using namespace holdfast;
using capi::report;
using capi::report_caught;
using capi::user_error;
using collective::CurrentGeneration;

namespace {

// Makes the generation of the early groups. It ends when the scheduler stops a generation, or when
// a rank was given to another process.
void begin_early(hf_worker* worker, const runtime::Identity& identity) {
  runtime::Worker& of = *worker->worker;
  worker->early = std::make_shared<CurrentGeneration>(
      CurrentGeneration::Options{.directory = identity.directory,
                                 .run_id = identity.run_id,
                                 .join_timeout = of.settings().topo_timeout});
  (void)worker->early->begin(capi::kEarly, of.neighbours().layout());
  of.on_stop([early = worker->early](Generation) {
    early->abort(capi::kEarly);
    return true;
  });
  if (of.solo()) return;
  of.key_values().watch(wire::kSucceeded, [early = worker->early] { early->abort(capi::kEarly); });
}

// The value that this thread read last: hf_kv_get() and the like return pointers into it.
wire::KeyValue& last_read() {
  thread_local wire::KeyValue pair;
  return pair;
}

hf_status read_key_values(hf_worker* worker, const std::vector<std::string>& keys,
                          std::uint64_t newer_than, std::int64_t milliseconds,
                          const std::function<bool()>& gives_up = nullptr) {
  constexpr auto kLongest = std::chrono::duration_cast<std::chrono::milliseconds>(config::kNever);
  const bool ends = milliseconds >= 0 && milliseconds < kLongest.count();
  const Duration limit = ends ? std::chrono::milliseconds(milliseconds) : config::kNever;
  auto got = worker->worker->key_values().get(keys, limit, newer_than, gives_up);
  if (!got) return report(got.error());
  if (!*got) return HF_PENDING;
  last_read() = std::move(**got);
  return HF_OK;
}

void tell_value(const void** value, std::uint64_t* bytes) {
  if (value != nullptr) *value = last_read().value.data();
  if (bytes != nullptr) *bytes = last_read().value.size();
}

Status check_key_values(const hf_worker* worker) {
  if (!worker->worker->solo()) return {};
  return user_error(
      "this process is a world of its own (MS_ROLE is not set), so there is no "
      "scheduler that keeps key-values");
}

}  // namespace

extern "C" {

int hf_rehearses(hf_worker* worker) {
  return worker->worker->settings().rehearse >= 0 ? 1 : 0;
}

void hf_rehearsal_differs(hf_worker* worker, const char* what) {
  if (auto* rehearsal = worker->worker->rehearsal()) rehearsal->differ(what);
}

void hf_rehearsal_skips(hf_worker* worker, const char* why) {
  if (auto* rehearsal = worker->worker->rehearsal()) rehearsal->skip(why);
}

uint32_t hf_abi_version(void) {
  return HF_ABI_VERSION;
}

hf_status hf_set_tls(const char* config_path, const char* client_password,
                     const char* server_password) try {
  const auto settings = config::from_environment(environ);
  if (!settings) return report(settings.error());
  const auto text = [](const char* given) { return given == nullptr ? "" : given; };
  return report(
      runtime::set_tls(*settings, text(config_path), text(client_password), text(server_password)));
} catch (...) {
  return report_caught();
}

hf_status hf_start(hf_worker** worker) try {
  if (worker == nullptr) return report(user_error("hf_start() needs somewhere to put the worker"));
  auto settings = config::from_environment(environ);
  if (!settings) return report(settings.error());
  if (settings->role == config::Role::kScheduler) {
    if (settings->run == 0) {  // Else msrun has warned about these.
      for (const auto& sentence : config::without_effect(environ)) {
        std::fprintf(stderr, "holdfast: %s\n", sentence.c_str());
      }
    }
    std::exit(runtime::serve(*settings));
  }
  auto started = runtime::Worker::start(*settings);
  if (!started) return report(started.error());
  *worker = new hf_worker;
  (*worker)->worker = *std::move(started);
  return HF_OK;
} catch (...) {
  return report_caught();
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

hf_status hf_identity(hf_worker* worker, hf_place* place) try {
  const auto identity = worker->worker->identity();
  if (!identity) return report(identity.error());
  const config::Settings& settings = worker->worker->settings();
  worker->directory = identity->directory;
  if (place == nullptr) return HF_OK;
  *place = {.rank = identity->rank,
            .world_size = identity->world_size,
            .run_id = identity->run_id,
            .attempt = settings.attempt,
            .node_id = settings.node_id.c_str(),
            .directory = worker->directory.c_str(),
            .job = settings.job.c_str()};
  return HF_OK;
} catch (...) {
  return report_caught();
}

hf_status hf_fail(hf_worker* worker, const char* reason) try {
  report(worker->worker->fail(reason == nullptr ? "the training failed" : reason));
  return HF_WORLD;
} catch (...) {
  return report_caught();
}

hf_status hf_early_group_open(hf_worker* worker, const int32_t* ranks, uint64_t count,
                              const char* name, hf_group** group) try {
  if (worker->opened) {
    return report(user_error("an early group after hf_open(): use hf_group_open()"));
  }
  const auto identity = worker->worker->identity();
  if (!identity) return report(identity.error());
  if (!worker->early) begin_early(worker, *identity);
  return capi::open_group(worker->early, *identity, ranks, count, name, "early-", group);
} catch (...) {
  return report_caught();
}

hf_status hf_kv_put(hf_worker* worker, const char* key, const void* value, uint64_t bytes) try {
  if (key == nullptr || (value == nullptr && bytes > 0)) {
    return report(user_error("hf_kv_put() needs a key and a value"));
  }
  if (const Status usable = check_key_values(worker); !usable) return report(usable);
  return report(
      worker->worker->key_values().put(key, std::string(static_cast<const char*>(value), bytes)));
} catch (...) {
  return report_caught();
}

hf_status hf_kv_get(hf_worker* worker, const char* const* keys, uint64_t count,
                    int64_t milliseconds, uint64_t* which, const void** value,
                    uint64_t* bytes) try {
  if (const Status usable = check_key_values(worker); !usable) return report(usable);
  const std::vector<std::string> wanted(keys, keys + (keys == nullptr ? 0 : count));
  const hf_status read = read_key_values(worker, wanted, 0, milliseconds);
  if (read != HF_OK) return read;
  if (which != nullptr) {
    const auto found = std::find(wanted.begin(), wanted.end(), last_read().key);
    *which = static_cast<uint64_t>(found - wanted.begin());
  }
  tell_value(value, bytes);
  return HF_OK;
} catch (...) {
  return report_caught();
}

hf_status hf_kv_set(hf_worker* worker, const char* key, const void* value, uint64_t bytes,
                    uint64_t expected, int* is_set, uint64_t* version) try {
  if (key == nullptr || (value == nullptr && bytes > 0)) {
    return report(user_error("hf_kv_set() needs a key and a value"));
  }
  if (const Status usable = check_key_values(worker); !usable) return report(usable);
  const auto written = worker->worker->key_values().set(
      key, std::string(static_cast<const char*>(value), bytes), expected);
  if (!written) return report(written.error());
  if (is_set != nullptr) *is_set = written->is_set ? 1 : 0;
  if (version != nullptr) *version = written->version;
  return HF_OK;
} catch (...) {
  return report_caught();
}

hf_status hf_kv_read(hf_worker* worker, const char* key, uint64_t newer_than, int64_t milliseconds,
                     const void** value, uint64_t* bytes, uint64_t* version) try {
  if (key == nullptr) return report(user_error("hf_kv_read() needs a key"));
  if (const Status usable = check_key_values(worker); !usable) return report(usable);
  const hf_status read = read_key_values(worker, {key}, newer_than, milliseconds);
  if (read != HF_OK) return read;
  tell_value(value, bytes);
  if (version != nullptr) *version = last_read().version;
  return HF_OK;
} catch (...) {
  return report_caught();
}

hf_status hf_kv_wait(hf_worker* worker, hf_session* session, const char* key, uint64_t newer_than,
                     const void** value, uint64_t* bytes, uint64_t* version) try {
  if (key == nullptr) return report(user_error("hf_kv_wait() needs a key"));
  if (const Status usable = check_key_values(worker); !usable) return report(usable);
  const auto gives_up = [session] { return hf_marked(session) != 0; };
  const hf_status read = read_key_values(worker, {key}, newer_than, -1, gives_up);
  if (read == HF_PENDING) return HF_ABORTED;
  if (read != HF_OK) return read;
  tell_value(value, bytes);
  if (version != nullptr) *version = last_read().version;
  return HF_OK;
} catch (...) {
  return report_caught();
}

void hf_copy(uint64_t count, void* const* to, const void* const* from, const uint64_t* bytes) {
  for (std::uint64_t i = 0; i < count; ++i) {
    collective::copy_past_caches(static_cast<std::byte*>(to[i]),
                                 static_cast<const std::byte*>(from[i]), bytes[i]);
  }
}

void hf_digest(uint64_t count, const void* const* data, const uint64_t* bytes, uint64_t* digests) {
  for (std::uint64_t i = 0; i < count; ++i) {
    digests[i] = digest({static_cast<const std::byte*>(data[i]), bytes[i]});
  }
}

}  // extern "C"
