#include "core/agent/rehearsals.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/text.h"

namespace holdfast::agent {

using wire::Reason;
using wire::Verdict;

namespace {

constexpr std::array kVerdicts = {Verdict::kEqual, Verdict::kDiffers, Verdict::kUncertain,
                                  Verdict::kSkipped};

// What all agents of a job say to the scheduler has to fit into a frame.
constexpr std::size_t kMostSaidBytes = std::size_t{1} << 20;

std::string_view take_line(std::string_view& bytes) {
  const std::size_t end = std::min(bytes.find('\n'), bytes.size());
  const std::string_view line = bytes.substr(0, end);
  bytes.remove_prefix(std::min(end + 1, bytes.size()));
  return line;
}

Reason::Kind told_as(Verdict verdict) {
  switch (verdict) {
    case Verdict::kDiffers:
      return Reason::Kind::kRehearsalDiffers;
    case Verdict::kUncertain:
      return Reason::Kind::kRehearsalUncertain;
    case Verdict::kSkipped:
      return Reason::Kind::kRehearsalSkipped;
    case Verdict::kWrong:
      return Reason::Kind::kRehearsalWrong;
    case Verdict::kEqual:
      break;
  }
  return Reason::Kind::kNone;
}

}  // namespace

std::optional<wire::RehearsalState> verdict_in(std::string_view bytes) {
  if (bytes.size() > kMostVerdictBytes) return std::nullopt;
  const std::string_view word = take_line(bytes);
  const std::string_view number = take_line(bytes);
  const std::string_view sentence = take_line(bytes);
  const auto verdict = std::find_if(kVerdicts.begin(), kVerdicts.end(),
                                    [&](Verdict known) { return name(known) == word; });
  wire::RehearsalState found;
  const auto* end = number.data() + number.size();
  const auto [rest, error] = std::from_chars(number.data(), end, found.version);
  if (verdict == kVerdicts.end() || error != std::errc{} || rest != end || !bytes.empty()) {
    return std::nullopt;
  }
  found.verdict = *verdict;
  if (sentence.size() > wire::kMaxSentenceBytes) return std::nullopt;
  if ((found.verdict == Verdict::kEqual) != sentence.empty()) return std::nullopt;
  found.sentence = printable(sentence);  // A terminal gets it.
  return found;
}

std::string rehearsal_log(const std::string& node_id) {
  return cat("rehearsal_", node_id, ".log");
}

bool Rehearsals::hear_of_step(Generation generation) {
  if (generation <= after_) return false;  // It was made before the fault, and is told late.
  const bool is_unheard = may_begin_ && generation > heard_;
  heard_ = std::max(heard_, generation);
  may_begin_ = true;
  return is_unheard;
}

void Rehearsals::hear_of_fault() {
  after_ = heard_;
  may_begin_ = goes_on_ = false;
  // A rank that was replaced is as new as its rehearsal: that they are equal shows nothing.
  for (auto& [node_id, entry] : entries_) entry.equals_left = 0;
}

// Those that never were come first, then by the oldest.
std::optional<std::string> Rehearsals::next(const std::vector<std::string>& places) const {
  if (!may_begin_ || process_ != 0) return std::nullopt;
  if (again_ && std::count(places.begin(), places.end(), node_id_) != 0) return node_id_;
  if (rest_ != 0) return std::nullopt;
  std::optional<std::string> found;
  std::uint64_t least = ~std::uint64_t{0};
  for (const auto& place : places) {
    const auto entry = entries_.find(place);
    if (entry != entries_.end() && entry->second.rests != 0) continue;
    const std::uint64_t order = entry == entries_.end() ? 0 : entry->second.order;
    if (order >= least) continue;
    least = order;
    found = place;
  }
  return found;
}

void Rehearsals::begin(Process process, const std::string& node_id, const Pause& pause) {
  process_ = process;
  node_id_ = node_id;
  counts_ = true;
  again_ = false;
  is_second_ = std::exchange(goes_on_, false);
  limit_ = pause(options_.at_most);
}

bool Rehearsals::call_off() {
  if (process_ == 0 || !counts_) return false;
  counts_ = false;
  again_ = true;
  limit_ = 0;
  return true;
}

News Rehearsals::conclude(wire::RehearsalState verdict, const std::vector<std::string>& places,
                          const Pause& pause) {
  verdict.node_id = node_id_;
  counts_ = false;
  limit_ = 0;
  Entry& entry = entries_[node_id_];
  entry.order = ++concluded_;
  const bool was_compared = verdict.verdict != Verdict::kSkipped;
  entry.skipped = was_compared ? 0 : entry.skipped + 1;
  if (entry.skipped >= kSkipsOnEnd) entry.rests = pause(kSkippedRest);
  const bool is_confirmed = weigh(entry, std::move(verdict));
  const bool all = std::all_of(places.begin(), places.end(),
                               [&](const auto& place) { return entries_.contains(place); });
  if (all) rest_ = pause(options_.interval);
  const bool ends_job = options_.strict && is_confirmed;
  if (ends_job) entry.told.clear();  // The end has a reason, whatever was told before.
  return {tell(entry), ends_job};
}

// Takes up a verdict. True: a second step has confirmed that the program differs.
bool Rehearsals::weigh(Entry& entry, wire::RehearsalState verdict) {
  const bool was_in_doubt = entry.equals_left > 0;
  switch (verdict.verdict) {
    case Verdict::kDiffers:
      differed_.insert(node_id_);
      program_differs_ = program_differs_ || was_in_doubt;
      entry.equals_left = was_in_doubt ? 0 : kEqualsToBlame;
      again_ = !was_in_doubt;
      entry.verdict = std::move(verdict);
      return was_in_doubt;
    case Verdict::kEqual:
      if (was_in_doubt && --entry.equals_left > 0) {
        again_ = true;
      } else if (was_in_doubt && differed_.size() == 1 && !program_differs_) {
        entry.verdict.verdict = Verdict::kWrong;
      }
      break;
    default:
      entry.equals_left = 0;
      break;
  }
  // That a rank differed, or computed wrong, stays in sight.
  const bool stays = was_in_doubt || entry.verdict.verdict == Verdict::kWrong;
  if (!stays) entry.verdict = std::move(verdict);
  return false;
}

// Each sentence is told once, and each wrong step.
std::optional<Reason> Rehearsals::tell(Entry& entry) const {
  const auto& now = entry.verdict;
  if (now.verdict == Verdict::kEqual || entry.told.size() == kMostTold) return std::nullopt;
  const std::string what = now.verdict == Verdict::kDiffers ? now.sentence
                           : now.verdict == Verdict::kWrong ? std::to_string(now.version)
                                                            : "";
  if (!entry.told.emplace(now.verdict, what).second) return std::nullopt;
  return Reason{.kind = told_as(now.verdict),
                .version = now.version,
                .node_id = now.node_id,
                .other = cat(options_.logs, '/', rehearsal_log(now.node_id)),
                .detail = now.sentence};
}

bool Rehearsals::end() {
  process_ = 0;
  limit_ = 0;
  return std::exchange(counts_, false);
}

bool Rehearsals::go_on() {
  if (is_second_) return false;
  again_ = goes_on_ = true;
  return true;
}

bool Rehearsals::over(std::uint64_t pause) {
  if (pause == rest_) rest_ = 0;
  for (auto& [node_id, entry] : entries_) {
    if (pause == entry.rests) entry.rests = 0;
  }
  return pause == limit_;
}

std::vector<wire::RehearsalState> Rehearsals::verdicts() const {
  std::vector<wire::RehearsalState> all;
  std::size_t bytes = 0;
  for (const auto& [node_id, entry] : entries_) {
    if (entry.order == 0) continue;
    all.push_back(entry.verdict);
    bytes += entry.verdict.sentence.size();
    if (bytes > kMostSaidBytes) all.back().sentence.clear();
  }
  return all;
}

}  // namespace holdfast::agent
