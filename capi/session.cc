// The functions of c.h for a session and its registered memory.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/text.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "runtime/worker/arena_store.h"

using namespace holdfast;
using capi::report;
using capi::report_caught;
using capi::user_error;
using collective::CurrentGeneration;
using collective::Team;

namespace {

using Phase = hf_session::Phase;

// The open hf_session, or null: a process has one worker, and a worker has one session.
std::atomic<void*> open_session = nullptr;

Status layout_of(const hf_layout* given, arena::Layout& layout) {
  if (given == nullptr) return user_error("hf_open() needs a layout");
  if (given->optimizer > HF_ADAMW) {
    return user_error(cat("the layout's optimizer is ", given->optimizer,
                          "; it must be an hf_optimizer (0 to ", int{HF_ADAMW}, ")"));
  }
  const std::uint32_t whose = given->flags & ~HF_PRIVATE_AS_USED;
  if (whose > HF_PRIVATE_OWN_LATER) {
    return user_error(cat("the layout's flags are ", given->flags,
                          "; allowed is HF_PRIVATE_OWN or HF_PRIVATE_OWN_LATER, and "
                          "HF_PRIVATE_AS_USED"));
  }
  if (given->parameter_count > 0 && given->parameters == nullptr) {
    return user_error("the layout's parameters are missing");
  }
  for (std::uint64_t i = 0; i < given->parameter_count; ++i) {
    const hf_parameter& p = given->parameters[i];
    if (p.name == nullptr) return user_error(cat("parameter ", i, " of the layout has no name"));
    layout.parameters.push_back({p.name, p.elements});
  }
  const bool may_have_common = whose == HF_PRIVATE_OWN || given->common_bytes == 0;
  if (!may_have_common || given->common_bytes > given->private_bytes) {
    return user_error(cat("the layout's common_bytes are ", given->common_bytes, " of ",
                          given->private_bytes,
                          " private bytes; there can be so many with HF_PRIVATE_OWN alone"));
  }
  layout.optimizer = static_cast<arena::Optimizer>(given->optimizer);
  layout.private_bytes = given->private_bytes;
  return {};
}

arena::Position position_of(const hf_position* p) {
  if (p == nullptr) return {};
  return {.epoch = p->epoch, .index = p->index, .samples = p->samples};
}

Status expect(const hf_session* s, Phase phase, const char* what) {
  if (s->phase == phase) return {};
  switch (s->phase) {
    case Phase::kOpen:
      return user_error(cat(what, " before hf_join()"));
    case Phase::kJoined:
      return user_error(cat(what, " outside of a step: hf_begin_step() comes first"));
    case Phase::kInStep:
      return user_error(cat(what, " within a step: hf_end_step() comes first"));
    case Phase::kEnded:
      return user_error(cat(what, " after hf_end()"));
  }
  return {};
}

arena::Arena& arena_of(hf_session* s) {
  return runtime::arena_of(*s->session);
}

hf_status give(std::span<float> floats, float** data, uint64_t* count) {
  *data = floats.data();
  *count = floats.size();
  return HF_OK;
}

Status check_parameter(hf_session* s, uint64_t i) {
  const std::size_t n = arena_of(s).layout().parameters.size();
  if (i < n) return {};
  return user_error(cat("there is no parameter ", i, "; the layout has ", n));
}

runtime::Secrecy secrecy_of(std::uint32_t flags) {
  if ((flags & HF_PRIVATE_OWN) != 0) return runtime::Secrecy::kOwn;
  const bool later = (flags & HF_PRIVATE_OWN_LATER) != 0;
  return later ? runtime::Secrecy::kOwnLater : runtime::Secrecy::kShared;
}

Result<std::vector<arena::Range>> ranges_of(const hf_step& step, std::uint64_t private_bytes) {
  std::vector<arena::Range> ranges;
  if (step.used_count > HF_MOST_RANGES || (step.used_count > 0 && step.used == nullptr)) {
    return user_error(cat("the step has ", step.used_count, " ranges of private bytes; there are ",
                          "at most ", HF_MOST_RANGES));
  }
  std::uint64_t end = 0;
  for (std::uint64_t i = 0; i < step.used_count; ++i) {
    const auto [offset, bytes] = step.used[i];
    if (offset < end || offset > private_bytes || bytes > private_bytes - offset) {
      return user_error(cat("range ", i, " of the step, ", bytes, " private bytes from ", offset,
                            " on, lies over another one, or beyond the ", private_bytes,
                            " that there are"));
    }
    end = offset + bytes;
    ranges.push_back({offset, bytes});
  }
  return ranges;
}

}  // namespace

extern "C" {

hf_status hf_prepare(hf_worker* worker, const hf_layout* layout) try {
  arena::Layout wanted;
  if (const Status good = layout_of(layout, wanted); !good) return report(good);
  worker->prepared = runtime::prepare_arena(*worker->worker, wanted);
  return HF_OK;
} catch (...) {
  return report_caught();
}

hf_status hf_open(hf_worker* worker, const hf_layout* layout, hf_session** session) try {
  if (worker->opened) return report(user_error("this worker has its session already"));
  arena::Layout wanted;
  if (const Status good = layout_of(layout, wanted); !good) return report(good);
  if (const hf_status placed = hf_identity(worker, nullptr); placed != HF_OK) return placed;
  const bool as_used = (layout->flags & HF_PRIVATE_AS_USED) != 0;
  auto opened = runtime::Session::open(
      *worker->worker,
      runtime::in_arena(std::move(wanted), secrecy_of(layout->flags), layout->common_bytes,
                        std::move(worker->prepared),
                        as_used ? arena::Memory::kAsUsed : arena::Memory::kAtOnce));
  if (!opened) return report(opened.error());
  worker->opened = true;
  auto made = std::make_unique<hf_session>();
  made->session = *std::move(opened);
  made->replicas = std::make_unique<runtime::Replicas>(*worker->worker, *made->session);
  const runtime::Identity& identity = made->session->identity();
  made->world.team = Team::of_world(made->session->current(), made->session->queue(), identity.rank,
                                    identity.world_size);
  made->owner = ::getpid();
  made->session->on_abort([worker](Generation) {
    if (worker->early) worker->early->abort(capi::kEarly);
  });
  *session = made.release();
  open_session = *session;
  return HF_OK;
} catch (...) {
  return report_caught();
}

void hf_close(hf_session* s) {
  // A forked child does nothing: its copy of the session is its parent's.
  if (s == nullptr || s->owner != ::getpid()) return;
  open_session = nullptr;
  s->world.team.reset();
  s->replicas.reset();
  s->session.reset();
  delete s;
}

int hf_fresh(hf_session* s) {
  return arena_of(s).fresh() ? 1 : 0;
}
uint64_t hf_version(hf_session* s) {
  return s->session->version();
}
uint64_t hf_generation(hf_session* s) {
  return s->session->generation();
}

hf_position hf_position_of(hf_session* s) {
  if (arena_of(s).fresh()) return {};
  const arena::Position p = arena_of(s).position();
  return {.epoch = p.epoch, .index = p.index, .samples = p.samples};
}

int hf_marked(hf_session* s) {
  const CurrentGeneration::Now now = s->session->current()->now();
  return now.world == nullptr || now.aborted ? 1 : 0;
}

hf_status hf_parameter_of(hf_session* s, uint64_t i, float** data, uint64_t* count) try {
  if (const Status known = check_parameter(s, i); !known) return report(known);
  return give(arena_of(s).parameter(i), data, count);
} catch (...) {
  return report_caught();
}

hf_status hf_gradient_of(hf_session* s, uint64_t i, float** data, uint64_t* count) try {
  if (const Status known = check_parameter(s, i); !known) return report(known);
  return give(arena_of(s).gradient(i), data, count);
} catch (...) {
  return report_caught();
}

hf_status hf_moment_of(hf_session* s, uint32_t k, uint64_t i, float** data, uint64_t* count) try {
  if (const Status known = check_parameter(s, i); !known) return report(known);
  const arena::Optimizer optimizer = arena_of(s).layout().optimizer;
  if (k >= arena::moment_count(optimizer)) {
    return report(user_error(cat("there is no moment ", k, "; ", arena::name(optimizer), " has ",
                                 arena::moment_count(optimizer))));
  }
  return give(arena_of(s).moment(k, i), data, count);
} catch (...) {
  return report_caught();
}

hf_status hf_gradients(hf_session* s, float** data, uint64_t* count) try {
  return give(arena_of(s).gradients(), data, count);
} catch (...) {
  return report_caught();
}

hf_status hf_private(hf_session* s, uint64_t version, void** data, uint64_t* bytes) try {
  arena::Arena& arena = arena_of(s);
  const bool known =
      arena.fresh() ? version == 0 : version == arena.version() || version == arena.version() + 1;
  if (!known) {
    const std::string there = arena.fresh() ? "there is no version yet, and the first is 0"
                                            : cat("there are those of ", arena.version(),
                                                  " and, to be filled, of the next");
    return report(user_error(cat("there are no private bytes of version ", version, "; ", there)));
  }
  if (s->phase == Phase::kInStep && version != arena.version()) s->session->staging();
  const auto span = arena.private_bytes(version);
  *data = span.data();
  *bytes = span.size();
  return HF_OK;
} catch (...) {
  return report_caught();
}

hf_status hf_take(hf_session* s, const hf_range* range) try {
  if (range == nullptr) return report(user_error("hf_take() needs a range"));
  arena::Arena& arena = arena_of(s);
  const std::uint64_t most = arena.layout().private_bytes;
  if (range->offset > most || range->bytes > most - range->offset) {
    return report(user_error(cat("hf_take() of ", range->bytes, " bytes from ", range->offset,
                                 " on: there are ", most, " private bytes")));
  }
  const Version next = arena.fresh() ? 0 : arena.version() + 1;
  return report(arena.take(next, {range->offset, range->bytes}));
} catch (...) {
  return report_caught();
}

hf_status hf_join(hf_session* s, const hf_position* position) try {
  if (s->phase != Phase::kOpen) return report(user_error("hf_join() was called before"));
  if (const Status joined = s->session->join(position_of(position)); !joined) {
    return report(joined);
  }
  s->phase = Phase::kJoined;
  return HF_OK;
} catch (...) {
  return report_caught();
}

hf_status hf_meet(hf_session* s, const hf_position* position, int* to_fill) try {
  if (to_fill == nullptr) return report(user_error("hf_meet() needs a place for its answer"));
  *to_fill = 0;
  if (s->phase != Phase::kOpen) return report(user_error("hf_join() was called before"));
  const auto met = s->session->meet(position_of(position));
  if (!met) return report(met.error());
  *to_fill = *met == runtime::Met::kToFill ? 1 : 0;
  if (*to_fill == 0) s->phase = Phase::kJoined;
  return HF_OK;
} catch (...) {
  return report_caught();
}

hf_status hf_begin_step(hf_session* s, int* reformed) try {
  const bool may_give_up = s->phase == Phase::kInStep && !s->reduced;
  if (const Status due = expect(s, Phase::kJoined, "hf_begin_step()"); !due && !may_give_up) {
    return report(due);
  }
  auto began = s->session->begin_step();
  if (!began) return report(began.error());
  const bool too_late = *began == runtime::Began::kTooLate;
  s->phase = too_late ? Phase::kJoined : Phase::kInStep;
  if (too_late) return report(HF_LEFT, s->session->why_too_late());
  s->replicas->begun();
  if (reformed != nullptr) *reformed = *began == runtime::Began::kReformed ? 1 : 0;
  return HF_OK;
} catch (...) {
  return report_caught();
}

int hf_sample(hf_session* s) try {
  return s->phase == Phase::kInStep && s->session->sample() ? 1 : 0;
} catch (...) {
  return 0;  // No memory for a recording: the step is not recorded.
}

void hf_note(hf_session* s, const char* name, const void* data, uint64_t bytes) try {
  s->session->note(name, {static_cast<const std::byte*>(data), bytes});
} catch (...) {
  (void)report_caught();
}

void hf_compare_exchanges(hf_session* s, int on) {
  s->session->compare_exchanges(on != 0);
}

hf_status hf_reduce(hf_session* s, uint64_t offset, uint64_t count) try {
  if (const Status due = expect(s, Phase::kInStep, "hf_reduce()"); !due) return report(due);
  const auto gradients = arena_of(s).gradients();
  if (offset > gradients.size() || count > gradients.size() - offset) {
    return report(user_error(cat("hf_reduce() of ", count, " floats from ", offset,
                                 " on: there are ", gradients.size())));
  }
  s->session->reduce(gradients.subspan(offset, count));
  s->reduced = true;
  return HF_OK;
} catch (...) {
  return report_caught();
}

hf_status hf_end_step(hf_session* s, const hf_step* step, int* is_void) try {
  if (const Status due = expect(s, Phase::kInStep, "hf_end_step()"); !due) return report(due);
  if (step == nullptr) return report(user_error("hf_end_step() needs the step's arguments"));
  const auto used = ranges_of(*step, arena_of(s).layout().private_bytes);
  if (!used) return report(used.error());
  s->phase = Phase::kJoined;
  s->reduced = false;
  arena::Arena& arena = arena_of(s);
  const arena::StagedStep staged{.private_bytes = arena.private_bytes(arena.version() + 1),
                                 .arguments = {.learning_rate = step->learning_rate,
                                               .momentum = step->momentum,
                                               .beta1 = step->beta1,
                                               .beta2 = step->beta2,
                                               .epsilon = step->epsilon,
                                               .weight_decay = step->weight_decay,
                                               .update_count = step->update_count},
                                 .position = position_of(&step->position),
                                 .used = *used};
  auto ended = s->session->end_step(staged, step->loss);
  if (!ended) return report(ended.error());
  if (is_void != nullptr) *is_void = *ended == runtime::Ended::kVoid ? 1 : 0;
  return HF_OK;
} catch (...) {
  return report_caught();
}

hf_status hf_end(hf_session* s) try {
  s->phase = Phase::kEnded;
  if (const Status settled = s->replicas->settled(); !settled) return report(settled);
  return report(s->session->end());
} catch (...) {
  return report_caught();
}

void hf_end_on_exit(int status, void* session) {
  if (status != 0 || session == nullptr || session != open_session) return;
  auto* s = static_cast<hf_session*>(session);
  if (s->phase == Phase::kEnded || s->owner != ::getpid()) return;
  if (hf_end(s) != HF_OK) std::fprintf(stderr, "holdfast: %s\n", hf_last_error());
}

hf_status hf_register(hf_session* s, void* data, uint64_t bytes, hf_memory** memory) try {
  if (memory == nullptr)
    return report(user_error("hf_register() needs somewhere to put the memory"));
  const std::shared_ptr<collective::Regions>& regions = s->session->regions();
  auto region = regions->add(static_cast<std::byte*>(data), bytes);
  if (!region) return report(region.error());
  *memory = new hf_memory{regions, *std::move(region)};
  return HF_OK;
} catch (...) {
  return report_caught();
}

void* hf_memory_data(const hf_memory* memory) {
  return memory->region->bytes().data();
}
int hf_memory_file(const hf_memory* memory) {
  return memory->region->fd();
}

void hf_unregister(hf_memory* memory) {
  if (memory == nullptr) return;
  memory->regions->remove(*memory->region);
  delete memory;
}

hf_group* hf_world(hf_session* s) {
  return &s->world;
}

hf_status hf_group_open(hf_session* s, const int32_t* ranks, uint64_t count, const char* name,
                        hf_group** group) try {
  return capi::open_group(s->session->current(), s->session->identity(), ranks, count, name, "sub-",
                          group);
} catch (...) {
  return report_caught();
}

}  // extern "C"
