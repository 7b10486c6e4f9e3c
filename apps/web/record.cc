#include "apps/web/record.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace holdfast::apps::web {
namespace {

constexpr Seconds kRecent = 10;

double mean_loss(const Json& status) {
  double sum = 0;
  double count = 0;
  for (const auto& rank : list_of(status, "ranks")) {
    const auto loss = number_of(rank, "loss");
    // A parameter server computes none, and a rank that made no step yet has 0.
    if (!loss || text_of(rank, "role") == "server") continue;
    if (number_of(rank, "version").value_or(0) < 1) continue;
    sum += *loss;
    count += 1;
  }
  // A program that gives no loss gives 0.
  return count == 0 || sum == 0 ? kNone : sum / count;
}

}  // namespace

std::array<double, kPhases.size()> phases_of(const Json& report) {
  std::array<double, kPhases.size()> seconds{};
  double began = 0;
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    const auto ended = number_of(report, kPhases.at(i).end);
    seconds.at(i) = ended ? std::max(*ended - began, 0.0) / 1000 : kNone;
    began = ended.value_or(began);
  }
  return seconds;
}

std::string_view cause_of(const Json& report) {
  const std::string word = text_of(report, "kind");
  const auto* const found = std::find(kCauses.begin(), kCauses.end(), word);
  return found == kCauses.end() ? kCauses.back() : *found;
}

void Record::take(Json status, Seconds now, double took) {
  const bool is_first = !status_.is_object();
  status_ = std::move(status);
  why_not_.clear();
  answered_ = now;
  took_ = took;
  if (is_first) {
    for (const auto cause : kCauses) causes_[cause] = 0;
  }
  add_point(now);
  count_recoveries(is_first);
  note_snapshots(now);
}

void Record::miss(std::string why) {
  why_not_ = std::move(why);
}

double Record::speed() const {
  if (newest_.size() < 2) return kNone;
  const double time = newest_.back().at - newest_.front().at;
  return time <= 0 ? kNone : std::max(newest_.back().step - newest_.front().step, 0.0) / time;
}

Seconds Record::first_seen(double version) const {
  if (!(version >= 0 && version < 1e15)) return kNone;
  const auto found = snapshots_.find(static_cast<std::uint64_t>(version));
  return found == snapshots_.end() ? kNone : found->second;
}

void Record::add_point(Seconds now) {
  const Point point{now, number_of(status_, "version").value_or(0), mean_loss(status_), kNone};
  newest_.push_back(point);
  std::erase_if(newest_, [&](const Point& one) { return now - one.at > kRecent; });
  if (!points_.empty() && now - points_.back().at < apart_) return;
  points_.push_back(point);
  points_.back().steps_per_s = speed();
  if (points_.size() <= kMostPoints) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < points_.size(); i += 2) points_[kept++] = points_[i];
  points_.resize(kept);
  apart_ = (points_.back().at - points_.front().at) / static_cast<double>(kept) * 0.9;
}

void Record::count_recoveries(bool is_first) {
  for (const auto& report : list_of(status_, "recovery_reports")) {
    const auto number = number_of(report, "recovery").value_or(0);
    if (number <= newest_recovery_) continue;
    newest_recovery_ = number;
    if (is_first) continue;
    ++causes_[cause_of(report)];
    steps_lost_ += static_cast<std::uint64_t>(
        std::clamp(number_of(report, "steps_lost").value_or(0), 0.0, 1e15));
    const auto seconds = phases_of(report);
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      if (std::isnan(seconds.at(i))) continue;
      phases_.at(i).seconds += seconds.at(i);
      ++phases_.at(i).count;
    }
  }
}

void Record::note_snapshots(Seconds now) {
  std::map<std::uint64_t, Seconds> seen;
  for (const auto& snapshot : list_of(status_, "snapshots")) {
    const auto found = snapshot.is_object() ? snapshot.find("version") : snapshot.end();
    if (found == snapshot.end() || !found->is_number_unsigned()) continue;
    const auto version = found->get<std::uint64_t>();
    const auto before = snapshots_.find(version);
    seen[version] = before == snapshots_.end() ? now : before->second;
  }
  snapshots_ = std::move(seen);
}

}  // namespace holdfast::apps::web
