// What the opaque handles of c.h stand for.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "collective/current_generation.h"
#include "collective/queue.h"
#include "collective/regions.h"
#include "collective/team.h"
#include "include/holdfast/c.h"
#include "runtime/worker/session.h"
#include "runtime/worker/worker.h"

struct hf_group {
  std::unique_ptr<holdfast::collective::Team> team;
};

struct hf_work {
  std::shared_ptr<holdfast::collective::Work> work;
};

struct hf_memory {
  std::shared_ptr<holdfast::collective::Regions> regions;
  std::shared_ptr<holdfast::collective::Region> region;
};

struct hf_worker {
  std::unique_ptr<holdfast::runtime::Worker> worker;
  // Of the early groups; made by the first.
  std::shared_ptr<holdfast::collective::CurrentGeneration> early;
  std::string directory;  // What an hf_place points to.
  bool opened = false;
  std::unique_ptr<holdfast::os::Unnamed> prepared;  // By hf_prepare().
};

struct hf_session {
  enum class Phase { kOpen, kJoined, kInStep, kEnded };
  std::unique_ptr<holdfast::runtime::Session> session;
  hf_group world;
  Phase phase = Phase::kOpen;
  bool reduced = false;  // The step under way has sums of hf_reduce(), so it must be ended.
  pid_t owner = 0;       // The process that opened it; a forked child has a copy.
};

namespace holdfast::capi {

inline constexpr Generation kEarly = 1;  // Of the early groups: their only one.

// Makes the handle of some ranks of a job. `prefix`: see collective::Team::open().
hf_status open_group(std::shared_ptr<collective::CurrentGeneration> current,
                     const runtime::Identity& identity, const std::int32_t* ranks,
                     std::uint64_t count, const char* name, const char* prefix, hf_group** group);

}  // namespace holdfast::capi
