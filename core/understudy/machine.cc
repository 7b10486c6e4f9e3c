#include "core/understudy/machine.h"

#include <algorithm>
#include <memory>
#include <span>
#include <variant>

#include "base/text.h"

namespace holdfast::understudy {

using wire::Verdict;

namespace {

bool may_vary(const Note& note) {
  return note.name.starts_with(kMayVary);
}

std::string_view shown(const Note& note) {
  return std::string_view(note.name).substr(may_vary(note) ? 1 : 0);
}

// Lets all accounts agree on what varies between two rehearsals and may do so.
void leave_out_what_varies(Account& rank, Account& former, Account& own) {
  const std::size_t all = std::min({rank.notes.size(), former.notes.size(), own.notes.size()});
  for (std::size_t i = 0; i < all; ++i) {
    const bool varies = former.notes[i].digest != own.notes[i].digest;
    if (!may_vary(own.notes[i]) || !varies) continue;
    for (Account* account : {&rank, &former, &own}) account->notes[i].digest = 0;
  }
}

// `rank` and `own` may break off where the other one goes on, if their account does.
std::optional<std::string> first_of(std::span<const Note> rank, std::span<const Note> own,
                                    bool rank_breaks_off, bool own_breaks_off) {
  const std::size_t both = std::min(rank.size(), own.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (rank[i].name != own[i].name) {
      return cat("it comes to ", shown(own[i]), " where the rank came to ", shown(rank[i]));
    }
    if (rank[i].digest != own[i].digest) return std::string(shown(own[i]));
  }
  if (rank.size() == own.size()) return std::nullopt;
  if (rank.size() > both ? own_breaks_off : rank_breaks_off) return std::nullopt;
  return rank.size() > both ? cat("it never comes to ", shown(rank[both]))
                            : cat("it comes to ", shown(own[both]), ", which the rank did not");
}

// The notes before kResults and those after it.
std::pair<std::span<const Note>, std::span<const Note>> halves(const std::vector<Note>& notes) {
  const auto is_mark = [](const Note& note) { return note.name == kResults; };
  const auto at = std::find_if(notes.begin(), notes.end(), is_mark);
  return {{notes.begin(), at}, {at == notes.end() ? at : std::next(at), notes.end()}};
}

}  // namespace

std::optional<std::string> first_difference(const Account& rank, const Account& own) {
  const bool rank_breaks_off = !rank.otherwise.empty();
  const bool own_breaks_off = !own.otherwise.empty();
  const auto first = [&](std::span<const Note> of_rank, std::span<const Note> of_own) {
    return first_of(of_rank, of_own, rank_breaks_off, own_breaks_off);
  };
  const auto [rank_before, rank_after] = halves(rank.notes);
  const auto [own_before, own_after] = halves(own.notes);
  if (auto found = first(rank_before, own_before)) return found;
  static const std::vector<Note> kNone;
  for (const auto* account : {&rank, &own}) {
    for (const auto& [group, exchanges] : account->exchanges) {
      const auto of = [&name = group](const Account& a) -> const std::vector<Note>& {
        const auto there = a.exchanges.find(name);
        return there == a.exchanges.end() ? kNone : there->second;
      };
      if (auto found = first(of(rank), of(own))) return found;
    }
  }
  if (auto found = first(rank_after, own_after)) return found;
  if (rank.otherwise == own.otherwise) return std::nullopt;
  return own_breaks_off ? own.otherwise : rank.otherwise;
}

Machine::Assignments Machine::begin(Version version, Account account) {
  version_ = version;
  account_ = std::move(account);
  return {assignment(wire::Stage::kStopping)};
}

// Whoever stands at the version goes on; else it takes it from what was recorded.
Machine::Assignments Machine::hear(const wire::Message& said) {
  if (const auto* report = std::get_if<wire::Report>(&said)) {
    const bool is_there = report->version == version_;
    return {assignment(is_there ? wire::Stage::kRunning : wire::Stage::kRepairing)};
  }
  if (std::holds_alternative<wire::Repaired>(said)) return {assignment(wire::Stage::kRunning)};
  return {};
}

Assigned Machine::assignment(wire::Stage stage) const {
  wire::Assignment part{.rank = part_.rank,
                        .world_size = part_.world_size,
                        .run_id = part_.run_id,
                        .generation = 1,
                        .stage = stage,
                        .version = version_,
                        .order = {},
                        .cause = {}};
  if (stage == wire::Stage::kRepairing) {
    part.order.act = wire::Act::kReceive;
    part.order.source.holder = part_.rank;
  }
  return {std::move(part), false, std::make_shared<const AddressBook>()};
}

std::optional<Conclusion> Machine::conclude(const Account& noted) const {
  Account rank = account_;
  Account own = noted;
  std::optional<Account> former = former_;
  if (former) leave_out_what_varies(rank, *former, own);
  const auto difference = first_difference(rank, own);
  if (former) {
    const auto between = first_difference(*former, own);
    // Where both differ from the rank alike, what they do otherwise later changes nothing.
    const bool alike = difference && difference == first_difference(rank, *former);
    if (between && !(alike && between != difference)) {
      return Conclusion{Verdict::kUncertain, *between};
    }
  }
  if (!difference) return Conclusion{Verdict::kEqual, ""};
  if (!former) return std::nullopt;
  return Conclusion{Verdict::kDiffers, *difference};
}

}  // namespace holdfast::understudy
