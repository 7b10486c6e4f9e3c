// What a training thread does to get back the state of its rank.
#include "base/text.h"
#include "sim/trainer.h"

namespace holdfast::sim {
namespace {

constexpr const char* kSourceLost = "the source's arena is lost";
constexpr std::uint32_t kDamageRarity = 12;

}  // namespace

// An order may come late to a host that was cut off.
bool Training::is_current(const trainer::Repair& work) const {
  return journal_.formation()->generation == work.generation;
}

bool Training::begin(Index index, const trainer::Repair& work) {
  Worker& worker = job_.workers[index];
  Arena& own = memory_.arena(worker);
  wrote(worker);
  if (work.order.moved) memory_.forget_held(worker);
  switch (work.order.act) {
    case wire::Act::kKeep:
      return false;
    case wire::Act::kBegin:
      if (own.version != kNoVersion && own.version != 0) {
        job_.checkers.violate("S3: an arena that holds a version is to begin at version 0");
      }
      if (is_current(work) && disk_.readable(journal_.formation()->snapshots) > 0) {
        job_.checkers.violate("S9: the job begins anew, and a snapshot is there");
      }
      return true;
    case wire::Act::kFinish:
      if (own.version == work.version) return false;
      if (own.version + 1 != work.version || own.staged != work.version) {
        job_.checkers.violate("S7: a rank is to finish a step that it has not staged");
      }
      own.updating = true;
      return true;
    case wire::Act::kReceive:
      if (memory_.holding(worker).private_is_own && work.version != 0 &&
          !memory_.private_source(worker, work)) {
        job_.checkers.violate("S3: a rank is to go on without the private part of its state");
      }
      own.version = own.staged = kNoVersion;  // Half a copy counts as no version.
      own.content = kGarbage;
      return true;
    case wire::Act::kLoad:
      memory_.forget_held(worker);
      own.version = own.staged = kNoVersion;
      own.content = kGarbage;
      return true;
  }
  return false;
}

// Whether the repair copies from another host, which may take any time.
bool Training::fetches(const Worker& worker, const trainer::Repair& work) const {
  return job_.setup.hosts && work.order.act == wire::Act::kReceive &&
         memory_.host_named(work.order.source.host) != worker.agent;
}

void Training::end(Index index, const trainer::Repair& work) {
  Worker& worker = job_.workers[index];
  Arena& own = memory_.arena(worker);
  wrote(worker);
  std::string error;
  if (work.order.act == wire::Act::kFinish) {
    if (own.updating) finish_update(own);
    memory_.settle(worker);
  } else if (work.order.act == wire::Act::kBegin) {
    own.version = own.staged = 0;
    own.content = kInitialContent;
  } else if (work.order.act == wire::Act::kLoad) {
    error = load(worker, work);
  } else {
    const wire::Location& from = serves(worker) ? work.order.private_source : work.order.source;
    if (fetches(worker, work) && worker.repair_stopped) {  // Whatever has been copied by now.
      return events_.tell_trainer(index,
                                  trainer::Repaired{memory_.holding(worker), "stopped", true});
    }
    if (job_.setup.serves(from.holder) != serves(worker)) {
      job_.checkers.violate("S7: a rank is to copy the state of workers from a server");
    }
    const Arena& source = memory_.arena(memory_.host_named(from.host), from.holder);
    const PrivatePart* part = memory_.private_source(worker, work);
    // If the job has gone on meanwhile, the source has another version, or is gone.
    const bool is_late =
        fetches(worker, work) && (source.version != work.version || source.updating ||
                                  (serves(worker) && part->version != work.version));
    const bool lacks =
        source.version == kNoVersion || source.lost_state || (part && part->version == kNoVersion);
    if (lacks && (memory_.wipes() > 0 || source.lost_state)) {
      source_lost_ = true;
      error = kSourceLost;
    } else if (is_late) {
      error = "the source is at another version";
    } else {
      job_.checkers.copies(source, work.version);
      // The rows of a step that is only staged are not made yet.
      const bool is_whole =
          !part || (serves(worker) ? part->version == work.version : part->has(work.version));
      if (!is_whole) job_.checkers.violate("S7: half a private part is received");
      own.version = own.staged = source.version;
      own.content = source.content;
      own.lost_state = own.lost_gradient = false;
    }
  }
  const bool too_late =
      work.order.act == wire::Act::kLoad && !error.empty() && worker.repair_stopped;
  events_.tell_trainer(index, trainer::Repaired{memory_.holding(worker), error, too_late});
}

// Takes the rank's part from the disk. Returns why it could not: any snapshot may have become
// unreadable.
std::string Training::load(Worker& worker, const trainer::Repair& work) {
  Disk::Folder* folder = disk_.find(work.order.snapshot);
  if (folder == nullptr || !folder->is_whole) {
    // Once a newer one is whole, an older one may be removed, before the scheduler hears of that.
    // It is asked for only if those in between can not be read.
    if (is_current(work) && !disk_.is_any_damaged()) {
      job_.checkers.violate("S8: a rank is to load a snapshot that is not whole");
    }
    return "it is not there";
  }
  if (!folder->is_damaged && job_.choices.pick(2, kDamageRarity) == 1) disk_.damage(*folder);
  if (folder->is_damaged) return "it is damaged";
  const SnapshotPart& part = folder->parts.at(worker.rank);
  if (part.version != work.version) {
    job_.checkers.violate("S8: a rank is to load a snapshot of another version");
  }
  Arena& own = memory_.arena(worker);
  own.version = own.staged = worker.began_at = part.version;
  own.content = part.content;
  own.lost_state = own.lost_gradient = false;
  return "";
}

}  // namespace holdfast::sim
