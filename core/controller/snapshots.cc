#include "core/controller/snapshots.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace holdfast::controller {

using wire::Reason;
using wire::SnapshotWord;
using wire::Stage;

namespace {

constexpr Version kMostAhead = Version{1} << 20;
constexpr Version kLeastAhead = 2;
// The first comes early: what a job that is young has done is kept, and a folder that can not be
// written is known.
constexpr Duration kFirst = std::chrono::seconds(30);
constexpr Duration kLeastTimeToWrite = std::chrono::minutes(10);
constexpr Duration kBetweenTold = std::chrono::hours(1);
constexpr Duration kBetweenTries = std::chrono::seconds(1);

// The newest one on record stays until the next one is on record, too. The word that the next one
// is whole may be lost.
std::size_t kept_on_record(const SnapshotOptions& options) {
  return std::max<std::size_t>(options.keep, 2);
}

}  // namespace

wire::Snapshot Snapshots::word(SnapshotWord word) const {
  return {.word = word,
          .generation = generation_,
          .version = version_,
          .name = word == SnapshotWord::kTake ? "" : name_};
}

// Once a rank has ended its training, it gives nothing any more.
bool Snapshots::may_begin() const {
  return job_.options.snapshots.wanted && job_.formation.stage == Stage::kRunning &&
         rendezvous_.is_proven() && rendezvous_.ended() == kNoRank;
}

std::optional<Instant> Snapshots::deadline() const {
  if (state_ == State::kWriting || state_ == State::kNaming) return written_by_;
  if (state_ != State::kIdle || !may_begin()) return std::nullopt;
  return lacking_since_ ? *lacking_since_ + kBetweenTries : next_;
}

// A lost host may not end its connections.
bool Snapshots::is_heard(Link link) const {
  const Agent* agent = job_.agents.find(link);
  return agent != nullptr && !agent->is_silent;
}

// The round is in vain, and the next one is due at once.
void Snapshots::drop() {
  state_ = State::kIdle;
  next_ = job_.now;
}

// Whether somebody asks for one of a step that is near.
bool Snapshots::is_asked() const {
  const Version near = job_.roster.newest_version() + ahead_;
  return std::any_of(asks_.begin(), asks_.end(),
                     [near](const auto& ask) { return ask.second.version <= near; });
}

void Snapshots::go_on() {
  answer_in_vain();
  if (!job_.options.snapshots.wanted) return;
  if (job_.has_ended()) state_ = State::kIdle;
  const bool runs = job_.formation.stage == Stage::kRunning &&
                    job_.formation.generation == generation_ && rendezvous_.ended() == kNoRank;
  // What is being written was committed, and is not touched by a fault. But once the job begins
  // again with an older one, its steps are made again: then a later one is of no use any more.
  if ((state_ == State::kTaking && !runs) || (state_ != State::kIdle && job_.formation.loads))
    drop();
  if ((state_ == State::kWriting || state_ == State::kNaming) && job_.now >= written_by_) {
    give_up(kNoRank, "", "the disk has not taken it in time");
  }
  if (!may_begin()) return lacking_since_.reset();
  // Somebody asks, and the round under way is for a step that is far.
  const bool is_far = state_ == State::kTaking && version_ > job_.roster.newest_version() + ahead_;
  if (state_ != State::kIdle && !(is_far && is_asked())) return;
  if (!next_) next_ = job_.now + std::min(job_.options.snapshots.every, kFirst);
  if (job_.now >= *next_ || is_asked()) begin();
}

void Snapshots::begin() {
  next_ = job_.now + job_.options.snapshots.every;
  generation_ = job_.formation.generation;
  version_ = job_.roster.newest_version() + ahead_;
  if (const Version steps = job_.options.snapshots.steps; steps > 0 && !is_asked()) {
    version_ = (version_ + steps - 1) / steps * steps;
  }
  // The generation, because steps that were lost are made again: an agent may still write or name
  // an earlier one of this version.
  name_ = wire::name_of_snapshot(job_.formation.run_id, generation_, version_);
  waits_for_.clear();
  asked_.clear();
  files_.clear();
  for (const Member& member : job_.roster.each()) {
    const Link agent = job_.agents.link_of(member.seat.agent);
    if (member.seat.agent.empty()) return lack_agent(member);
    if (member.link == 0 || !is_heard(agent)) {  // It is coming back, or will be replaced.
      next_ = job_.now + kBetweenTries;
      return;
    }
    waits_for_.insert(member.link);
    asked_[agent].push_back({.rank = member.rank});
  }
  lacking_since_.reset();
  state_ = State::kTaking;
  for (const Link link : waits_for_) job_.send(link, word(SnapshotWord::kTake));
}

// Its agent may not have told of it yet. So it is tried again with every event, for a while.
void Snapshots::lack_agent(const Member& member) {
  if (!lacking_since_) lacking_since_ = job_.now;
  if (job_.now < *lacking_since_ + kBetweenTries) {
    next_ = job_.now;
    return;
  }
  lacking_since_.reset();
  next_ = std::max(*next_, job_.now + kBetweenTries);
  give_up(
      member.rank, member.seat.host,
      "no agent has started its process, and agents write snapshots: use msrun or holdfast run");
}

void Snapshots::ask(Link link, const wire::Snapshot& m) {
  const wire::PeerKind kind = job_.connections.at(link).kind;
  if (kind != wire::PeerKind::kObserver && job_.agents.find(link) == nullptr) return;
  const bool stops = kind == wire::PeerKind::kObserver && m.word == SnapshotWord::kStop;
  if (job_.options.snapshots.wanted || !stops || job_.has_ended()) {
    asks_[link] = {.version = m.version, .stops = stops};
    return;
  }
  wire::Snapshot told = word(m.version > 0 ? SnapshotWord::kFailed : SnapshotWord::kStop);
  told.why = m.version > 0 ? "a job that makes none does not stop after a step" : "";
  job_.send(link, std::move(told));
  if (m.version > 0) return;
  name_.clear();  // None is made for this end.
  job_.tell_agents(word(SnapshotWord::kStop));
}

// There will be no snapshot any more.
void Snapshots::answer_in_vain() {
  if (asks_.empty()) return;
  const std::string why = why_none();
  if (why.empty()) return;
  for (auto& [link, ask] : asks_) ask.version = 0;
  answer(SnapshotWord::kFailed, why);
}

// Why there will be no snapshot any more; empty: there may be one.
std::string Snapshots::why_none() const {
  if (!job_.options.snapshots.wanted) return "the job was started without --snapshot";
  if (job_.has_ended()) return "the job has ended";
  if (job_.formation.is_paused()) return "the job is paused: `holdfast resume` comes first";
  return rendezvous_.ended() != kNoRank ? "a rank has ended its training" : "";
}

// What was under way when they asked counts as well, if it is late enough: of several hosts that
// are to end, each agent asks. Each agent ends as it does by a signal. The first that has ended
// tells the scheduler.
void Snapshots::answer(SnapshotWord word, const std::string& why) {
  wire::Snapshot m = this->word(word);
  m.why = why;
  bool stops = false;
  std::erase_if(asks_, [&](const auto& entry) {
    const auto& [link, ask] = entry;
    if (ask.version > version_) return false;
    stops = stops || (ask.stops && word == SnapshotWord::kNamed);
    job_.send(link, m);
    return true;
  });
  if (stops) job_.tell_agents(this->word(SnapshotWord::kStop));
}

void Snapshots::closed(Link link) {
  asks_.erase(link);
  lost(link);
}

void Snapshots::lost(Link link) {
  if (state_ != State::kIdle && waits_for_.contains(link)) drop();
}

void Snapshots::receive(Link link, const wire::Snapshot& m) {
  if (m.word == SnapshotWord::kUnreadable) return strike(link, m);
  if (m.word == SnapshotWord::kAsk || m.word == SnapshotWord::kStop) return ask(link, m);
  // An agent may still answer an earlier round. If the job has begun again since, that one may have
  // been of the same version.
  if (state_ == State::kIdle || m.version != version_ || m.generation != generation_) return;
  if (!waits_for_.contains(link)) return;
  take_words_of(link, m);
}

// Of a rank or an agent that is waited for.
void Snapshots::take_words_of(Link link, const wire::Snapshot& m) {
  const Agent* agent = job_.agents.find(link);
  switch (m.word) {
    case SnapshotWord::kTaken:
      if (state_ != State::kTaking) return;
      if (waits_for_.erase(link); waits_for_.empty()) write();
      return;
    case SnapshotWord::kMissed:
      if (state_ != State::kTaking) return;
      ahead_ = std::min(2 * ahead_, kMostAhead);
      return drop();
    case SnapshotWord::kWritten: {
      if (state_ != State::kWriting) return;
      const auto same = [](const auto& a, const auto& b) { return a.rank == b.rank; };
      const auto& asked = asked_.at(link);
      if (!std::equal(asked.begin(), asked.end(), m.files.begin(), m.files.end(), same)) return;
      files_.insert(files_.end(), m.files.begin(), m.files.end());
      if (waits_for_.erase(link); waits_for_.empty()) name_it();
      return;
    }
    case SnapshotWord::kNamed:
      if (state_ == State::kNaming) keep();
      return;
    case SnapshotWord::kFailed:
      return give_up(job_.connections.rank_at(link), agent != nullptr ? agent->host : "", m.why);
    default:
      return;
  }
}

void Snapshots::write() {
  state_ = State::kWriting;
  written_by_ = job_.now + std::max(10 * job_.options.snapshots.every, kLeastTimeToWrite);
  for (const auto& [agent, files] : asked_) {
    if (!is_heard(agent)) return drop();
    waits_for_.insert(agent);
  }
  for (const auto& [agent, files] : asked_) {
    wire::Snapshot order = word(SnapshotWord::kWrite);
    order.files = files;
    job_.send(agent, std::move(order));
  }
}

void Snapshots::name_it() {
  state_ = State::kNaming;
  std::sort(files_.begin(), files_.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  wire::Snapshot order = word(SnapshotWord::kName);
  order.files = files_;
  const auto& known = job_.formation.snapshots;
  for (std::size_t i = kept_on_record(job_.options.snapshots) - 1; i < known.size(); ++i) {
    order.old.push_back(known[i].name);
  }
  const Link agent = asked_.begin()->first;
  if (!is_heard(agent)) return drop();
  waits_for_.insert(agent);
  job_.send(agent, std::move(order));
}

void Snapshots::keep() {
  state_ = State::kIdle;
  told_.reset();
  ahead_ = std::max(ahead_ / 2, kLeastAhead);
  auto& known = job_.formation.snapshots;
  known.insert(known.begin(), {version_, name_});
  known.resize(std::min(known.size(), kept_on_record(job_.options.snapshots)));
  job_.store();
  answer(SnapshotWord::kNamed, "");
}

// A disk that is full stays so for long: users hear it now and then.
void Snapshots::give_up(Rank rank, const std::string& host, const std::string& why) {
  state_ = State::kIdle;
  answer(SnapshotWord::kFailed, why);
  if (told_ && job_.now < *told_ + kBetweenTold) return;
  told_ = job_.now;
  Reason told{.kind = Reason::Kind::kSnapshotFailed,
              .rank = rank,
              .version = version_,
              .host = host,
              .detail = wire::sentence(why)};
  remarks_.tell(rank, told);
}

// A rank can not load its part of the snapshot with which all are to begin again: so nobody can.
void Snapshots::strike(Link link, const wire::Snapshot& m) {
  const Rank rank = job_.connections.rank_at(link);
  wire::Formation& formation = job_.formation;
  if (rank == kNoRank || formation.stage != Stage::kRepairing || !formation.loads) return;
  if (m.generation != formation.generation || m.version != formation.version) return;
  if (std::erase_if(formation.snapshots, [&](const auto& s) { return s.name == m.name; }) == 0)
    return;
  Reason why{.kind = Reason::Kind::kSnapshotUnreadable,
             .rank = rank,
             .version = m.version,
             .host = job_.roster.at(rank).seat.host,
             .detail = m.why};
  rendezvous_.begin(why);
  remarks_.tell(rank, why);
}

}  // namespace holdfast::controller
