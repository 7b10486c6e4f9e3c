#include "runtime/worker/replicas.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/digest.h"
#include "base/text.h"

namespace holdfast::runtime {
namespace {

using collective::Outcome;
using Act = replicas::Verdict::Act;
using Heard = replicas::Comparison::Heard;

constexpr const char* kCause =
    "Either the program changes it on one rank alone (gradients clipped differently, a change "
    "under `if rank == ...`, draws without a common seed, a learning rate read at another time), "
    "or a host's memory is faulty";

constexpr const char* kUnlessWarned = "To go on all the same: HOLDFAST_DRIFT=warn";

std::uint64_t nanoseconds(std::chrono::steady_clock::duration d) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(d).count());
}

std::uint64_t digest_of(std::span<const std::uint64_t> numbers) {
  return digest(std::as_bytes(numbers));
}

replicas::Options options_of(const config::Settings& settings) {
  return {.warns_only = settings.drift == config::Drift::kWarn,
          .every = static_cast<std::uint64_t>(settings.digest_every)};
}

}  // namespace

Replicas::Replicas(Worker& worker, Session& session)
    : worker_(worker), session_(session), comparison_(options_of(worker.settings())) {}

void Replicas::hold(Table table) {
  table_ = std::move(table);
  held_at_ = session_.version();
  std::string all;
  for (std::size_t i = 0; i < table_.names.size(); ++i) {
    all += cat(table_.names[i], '\n', table_.bytes_of(i).size(), '\n');
  }
  names_ = all.empty() ? 0 : digest(std::as_bytes(std::span(all))) | 1;
  digests_.assign(table_.names.size(), 0);
  worker_.drills().may_flip(table_.names, table_.bytes_of, table_.flip);
}

bool Replicas::is_due(bool at_end) const {
  // A rehearsal has no other ranks to compare with.
  return session_.identity().world_size > 1 && session_.rehearsal() == nullptr &&
         comparison_.is_due(session_.generation(), at(), at_end);
}

void Replicas::begun() {
  const Clock::time_point now = Clock::now();
  if (at().step == following_) {
    const std::uint64_t step = nanoseconds(now - began_);
    mine_.step = mine_.step == 0 ? step : std::min(mine_.step, step);
  }
  following_ = at().step + 1;
  began_ = now;
}

Status Replicas::compare() {
  repaired_.clear();
  if (!session_.group() || session_.group()->aborted()) return {};
  const auto outcome = try_once();
  if (!outcome) return outcome.error();
  began_ = Clock::now();  // The comparison is not part of the step.
  return {};
}

Status Replicas::compare_for_certain() {
  repaired_.clear();
  while (is_due(true)) {
    const auto began = session_.begin_step();
    if (!began) return began.error();
    if (*began == Began::kTooLate) {
      // A rank has ended its training, so it had made this comparison, and so had all ranks. Their
      // copies need not be complete.
      return settled();
    }
    following_.reset();  // The time until the next step is not that of a step.
    const auto outcome = try_once();
    if (!outcome) return outcome.error();
    if (*outcome == Outcome::kMismatch) return worker_.fail(session_.group()->why());
    if (*outcome != Outcome::kAborted) return {};
  }
  return {};
}

Status Replicas::settled() {
  if (unrepaired_.empty()) return {};
  return worker_.fail(cat(unrepaired_, ", and a fault came before that could be repaired"));
}

void Replicas::read() {
  for (std::size_t i = 0; i < digests_.size(); ++i) digests_[i] = digest(table_.bytes_of(i));
}

Result<Outcome> Replicas::try_once() {
  const Clock::time_point began = Clock::now();
  read();
  const Clock::time_point have_read = Clock::now();
  if (session_.has_lost_pages()) return Outcome::kAborted;  // What was read may be zeros.
  // If only committed bytes are lost, which the next version replaces, this one is not compared.
  const Holding holding = session_.store().holding();
  mine_.names = holding.has_lost_shared || holding.has_lost_private ? 0 : names_;
  mine_.digest = digest_of(digests_);
  mine_.is_copy = session_.store().is_copy() ? 1 : 0;
  comparison_.tell(mine_);
  mine_.read = nanoseconds(have_read - began);
  std::vector<replicas::Reading> readings(static_cast<std::size_t>(session_.identity().world_size));
  const Outcome outcome = session_.all_gather(std::as_bytes(std::span(&mine_, 1)),
                                              std::as_writable_bytes(std::span(readings)));
  if (outcome != Outcome::kDone) return outcome;
  mine_.exchange = nanoseconds(Clock::now() - have_read);
  mine_.step = 0;
  const Heard heard = comparison_.heard(session_.generation(), at(), readings);
  unrepaired_.clear();
  if (heard == Heard::kUnlike) return look_at_each();
  if (heard == Heard::kOtherNames) {
    const std::string words = cat(comparison_.unlike_names(), " after step ", at().step);
    if (worker_.settings().drift != config::Drift::kWarn) {
      return worker_.fail(cat(words, "; all ranks keep the same. ", kUnlessWarned));
    }
    say(cat(words, ". Their values are not compared"));
  }
  return outcome;
}

Result<Outcome> Replicas::look_at_each() {
  const auto ranks = static_cast<std::size_t>(session_.identity().world_size);
  std::vector<std::uint64_t> all(ranks * digests_.size());
  const Outcome outcome = session_.all_gather(std::as_bytes(std::span(digests_)),
                                              std::as_writable_bytes(std::span(all)));
  if (outcome != Outcome::kDone) return outcome;
  const auto verdict = comparison_.judge(table_.names, all);
  if (verdict.act == Act::kEnd) {
    return worker_.fail(cat(told(verdict), kUnlessWarned));
  }
  if (verdict.act == Act::kRepair) {
    unrepaired_ = verdict.words;
    const Outcome repaired = repair(verdict.copies, all);
    if (repaired != Outcome::kDone) return repaired;
    unrepaired_.clear();
    comparison_.repaired();
    say(cat(told(verdict), "It has been given the values that most ranks hold"));
  } else if (!verdict.words.empty()) {
    say(cat(told(verdict), "The job goes on (HOLDFAST_DRIFT=warn)"));
  }
  return outcome;
}

std::string Replicas::told(const replicas::Verdict& verdict) {
  return cat(verdict.words, ". ", kCause, ". ", verdict.doubt, verdict.doubt.empty() ? "" : ". ");
}

// Each replica is complete or untouched, whenever a fault comes: the next generation compares
// again.
Outcome Replicas::repair(const std::vector<replicas::Verdict::Copy>& copies,
                         std::span<const std::uint64_t> digests) {
  const auto me = static_cast<std::size_t>(session_.identity().rank);
  std::vector<std::byte> scratch;
  for (const auto [tensor, from] : copies) {
    const std::span<std::byte> bytes = table_.bytes_of(tensor);
    scratch.assign(bytes.begin(), bytes.end());
    const Outcome outcome = session_.broadcast(scratch, static_cast<Rank>(from));
    if (outcome != Outcome::kDone) return outcome;
    // That rank's memory has changed since it was read. All see that.
    if (digest(scratch) != digests[from * digests_.size() + tensor]) return Outcome::kAborted;
    if (digests[me * digests_.size() + tensor] == digests[from * digests_.size() + tensor])
      continue;
    session_.spoil_part();
    std::memcpy(bytes.data(), scratch.data(), bytes.size());
    repaired_.push_back(tensor);
  }
  return Outcome::kDone;
}

void Replicas::say(const std::string& words) {
  if (session_.identity().rank != 0) return;
  worker_.remark({.kind = wire::Reason::Kind::kReplicas, .detail = words});
}

replicas::At Replicas::at() const {
  const Version version = session_.version();
  return {version, table_.step + (version - held_at_)};
}

}  // namespace holdfast::runtime
