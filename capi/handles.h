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
#include "runtime/worker/replicas.h"
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
  // The generation of the early groups; made by the first hf_early_group_open().
  std::shared_ptr<holdfast::collective::CurrentGeneration> early;
  std::string directory;                            // hf_place::directory points to it.
  bool opened = false;                              // hf_open() has succeeded.
  std::unique_ptr<holdfast::os::Unnamed> prepared;  // By hf_prepare(), for hf_open().
};

struct hf_session {
  enum class Phase { kOpen, kJoined, kInStep, kEnded };
  std::unique_ptr<holdfast::runtime::Session> session;
  std::unique_ptr<holdfast::runtime::Replicas> replicas;
  hf_group world;
  holdfast::runtime::Drills::Flip flip;  // By hf_flip_by().
  Phase phase = Phase::kOpen;
  bool reduced = false;  // hf_reduce() was called in this step, so it must not be given up.
  pid_t owner = 0;       // The process that opened it. In a forked child, another process.
};

namespace holdfast::capi {

inline constexpr Generation kEarly = 1;  // The only generation of early groups.

// Makes the handle of a group of some ranks. `prefix`: see collective::Team::open().
hf_status open_group(std::shared_ptr<collective::CurrentGeneration> current,
                     const runtime::Identity& identity, const std::int32_t* ranks,
                     std::uint64_t count, const char* name, const char* prefix, hf_group** group);

}  // namespace holdfast::capi
