// The checks of the invariants: a function for each kind of event.
#include "sim/checkers.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/prng.h"
#include "base/text.h"

namespace holdfast::sim {

std::uint64_t contribution(std::uint64_t content, Rank rank, Version n) {
  return derive(content, rank, n);
}

std::uint64_t updated(std::uint64_t content, std::uint64_t gradient, Version n) {
  return derive(content, gradient, n);
}

Checkers::Checkers(Rank ranks, Version steps) : steps_(steps) {
  undisturbed_.push_back(kInitialContent);
  for (Version n = 1; n <= steps; ++n) {
    std::uint64_t gradient = 0;
    for (Rank rank = 0; rank < ranks; ++rank) {
      gradient += contribution(undisturbed_.back(), rank, n);
    }
    undisturbed_.push_back(updated(undisturbed_.back(), gradient, n));
  }
}

void Checkers::violate(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

void Checkers::said(const wire::Message& message, Rank rank, Incarnation incarnation,
                    const std::optional<wire::Formation>& durable) {
  const auto is_durable = [&](bool condition) {
    if (!durable || !condition) violate("P1: the scheduler said what a crash could make it forget");
  };
  const bool placed =
      durable && rank >= 0 && static_cast<std::size_t>(rank) < durable->roster.size();
  const auto* seat = placed ? &durable->roster[static_cast<std::size_t>(rank)] : nullptr;
  if (const auto* part = std::get_if<wire::Assignment>(&message)) {
    is_durable(seat && seat->incarnation == incarnation &&
               durable->generation == part->generation && durable->pauses >= part->pauses);
    order_ = std::max(order_, part->pauses);
    if (part->stage == wire::Stage::kStopping) announced_.insert(part->generation);
    if (part->stage == wire::Stage::kRunning) said_to_run(*part, durable);
  } else if (std::holds_alternative<wire::Farewell>(message)) {
    is_durable(seat && seat->finished);
  } else if (std::holds_alternative<wire::JobEnded>(message)) {
    is_durable(durable && durable->stage == wire::Stage::kEnded);
  }
}

void Checkers::said_to_run(const wire::Assignment& part,
                           const std::optional<wire::Formation>& durable) {
  const bool known =
      durable && durable->stage == wire::Stage::kRunning && durable->version == part.version;
  const bool ended = part.ended == kNoRank ||
                     (durable && durable->roster.at(static_cast<std::size_t>(part.ended)).finished);
  if (!known || !ended) violate("P1: the scheduler said what a crash could make it forget");
  const auto [found, is_new] = resumed_.emplace(part.generation, part.version);
  if (!is_new && found->second != part.version) {
    violate(cat("S1: generation ", part.generation, " goes on from version ", found->second,
                " and from ", part.version));
  }
}

void Checkers::began(Generation generation) {
  if (!begun_.insert(generation).second && announced_.contains(generation)) {
    violate(cat("S1: generation ", generation, " was formed twice"));
  }
}

void Checkers::went(Rank rank, Generation generation, Version version,
                    const std::vector<Arena>& arenas) {
  newest_ = std::max(newest_, generation);
  const Arena& own = arenas[static_cast<std::size_t>(rank)];
  const auto [found, is_new] = formed_.emplace(generation, Formed{version, own.content, {}});
  Formed& formed = found->second;
  if (!formed.ranks.insert(rank).second) {
    violate(cat("S1: rank ", rank, " went to generation ", generation, " twice"));
  }
  if (own.version != version || own.updating) {
    violate(
        cat("S2: rank ", rank, " goes on from version ", version, " but its arena is not at it"));
  }
  if (formed.version != version || formed.content != own.content) {
    violate(cat("S2: the ranks of generation ", generation, " go on from different states"));
  }
  if (version > steps_ || own.content != undisturbed_[static_cast<std::size_t>(version)]) {
    violate(cat("S4: version ", version, " is not what it would have been without a fault"));
  }
  if (!is_new) return;  // Ranks that went there earlier may have made further versions.
  for (const auto& arena : arenas) {
    if (arena.version != kNoVersion && arena.reached() > version) {
      violate(cat("S3: all go on from version ", version, " but a whole copy of version ",
                  arena.reached(), " exists"));
    }
  }
  if (version < told_) {
    violate(
        cat("S3: all go on from version ", version, " but the scheduler knew of version ", told_));
  }
  if (!wiped_ && version < committed_) {
    violate(cat("S3: all go on from version ", version, " but version ", committed_,
                " had been committed"));
  }
}

void Checkers::met(Generation generation, const std::vector<PeerPlace>& places) {
  if (met_.emplace(generation, places).first->second != places) {
    violate(cat("P54: the ranks of generation ", generation,
                " look for each other at different places"));
  }
}

void Checkers::gathered(Generation generation) {
  if (generation < newest_) {
    violate(cat("S6: the group of generation ", generation, " works on while generation ", newest_,
                " is running"));
  }
}

void Checkers::wrote(const Arena& arena, std::uint64_t process) {
  if (arena.owner != process) violate("S6: a process wrote to an arena that another had opened");
}

void Checkers::copies(const Arena& source, Version version) {
  if (source.version != version || source.updating) {
    violate("S7: a rank copies from an arena that is not whole at the version wanted");
  }
}

void Checkers::stands_still(std::uint64_t order) {
  if (std::exchange(stands_, order) != order) stands_at_ = committed_;
}

void Checkers::committed(const Arena& arena) {
  committed_ = std::max(committed_, arena.version);
  if (stands_ != 0 && order_ == stands_ && arena.version > stands_at_) {
    violate(cat("P64: version ", arena.version, " is made while the job stands still"));
  }
  if (arena.version > steps_) {
    violate(cat("S5: version ", arena.version, " is beyond the last step"));
  } else if (arena.content != undisturbed_[static_cast<std::size_t>(arena.version)]) {
    violate(cat("S4: version ", arena.version, " is not what it would have been without a fault"));
  }
}

void Checkers::got(Rank rank, std::uint64_t value) {
  if (!given_[rank].contains(value)) violate("P36: a value that nobody has given");
  if (got_.emplace(rank, value).first->second != value) {
    violate(cat("P36: two processes were told different values of rank ", rank));
  }
}

void Checkers::saw_list(wire::KeyVersion version, const std::string& list) {
  if (lists_.emplace(version, list).first->second != list) {
    violate("P36: two values of one version");
  }
  std::istringstream entries(list);
  std::set<std::string> once;
  std::size_t all = 0;
  for (std::string entry; entries >> entry; ++all) once.insert(entry);
  if (all != version) violate("P36: a change was lost");
  if (once.size() != all) violate("P36: a change was made twice");
}

void Checkers::ended_well(const std::vector<Arena>& arenas) {
  for (const auto& arena : arenas) {
    if (arena.spent) continue;
    if (arena.version != steps_ || arena.updating || arena.content != undisturbed_.back()) {
      violate("S5: the job ended well but a rank has not made every step exactly once");
    }
  }
}

}  // namespace holdfast::sim
