// The invariants, one function for each thing that can be seen.
#include "sim/checkers.h"

#include <algorithm>

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
                    const std::optional<wire::Record>& durable) {
  const auto is_durable = [&](bool condition) {
    if (!durable || !condition) violate("P1: the scheduler said what a crash could make it forget");
  };
  const bool placed =
      durable && rank >= 0 && static_cast<std::size_t>(rank) < durable->ranks.size();
  const auto* lease = placed ? &durable->ranks[static_cast<std::size_t>(rank)] : nullptr;
  if (const auto* stop = std::get_if<wire::Stop>(&message)) {
    is_durable(durable && durable->generation == stop->generation);
    announced_.insert(stop->generation);
  } else if (const auto* resume = std::get_if<wire::Resume>(&message)) {
    is_durable(durable && durable->generation == resume->generation && durable->resumed &&
               durable->version == resume->version);
    if (resume->ended != kNoRank) {
      is_durable(durable && durable->ranks.at(static_cast<std::size_t>(resume->ended)).finished);
    }
    const auto [found, is_new] = resumed_.emplace(resume->generation, resume->version);
    if (!is_new && found->second != resume->version) {
      violate(cat("S1: generation ", resume->generation, " goes on from version ", found->second,
                  " and from ", resume->version));
    }
  } else if (std::holds_alternative<wire::Accepted>(message)) {
    is_durable(lease && lease->incarnation == incarnation);
  } else if (std::holds_alternative<wire::Farewell>(message)) {
    is_durable(lease && lease->finished);
  } else if (std::holds_alternative<wire::JobEnded>(message)) {
    is_durable(durable && durable->ended);
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
  if (!is_new) return;  // Others may have trained on since.
  for (const auto& arena : arenas) {
    if (arena.version != kNoVersion && arena.reached() > version) {
      violate(cat("S3: all go on from version ", version, " but a whole copy of version ",
                  arena.reached(), " exists"));
    }
  }
  if (!wiped_ && version < committed_) {
    violate(cat("S3: all go on from version ", version, " but version ", committed_,
                " had been committed"));
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

void Checkers::committed(const Arena& arena) {
  committed_ = std::max(committed_, arena.version);
  if (arena.version > steps_) {
    violate(cat("S5: version ", arena.version, " is beyond the last step"));
  } else if (arena.content != undisturbed_[static_cast<std::size_t>(arena.version)]) {
    violate(cat("S4: version ", arena.version, " is not what it would have been without a fault"));
  }
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
