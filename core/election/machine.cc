#include "core/election/machine.h"

#include <array>

#include "base/assert.h"

namespace holdfast::election {
namespace {

constexpr Duration kBetweenLooks = std::chrono::milliseconds(150);
// How much longer than its lease a key may stay: etcd looks for ended leases twice a second.
constexpr Duration kLateEnd = std::chrono::seconds(1);
// Two looks in a row lie at most this far apart if all is well: an answer takes a second at most.
constexpr Duration kFarApart = std::chrono::milliseconds(1250);
constexpr Duration kFirstPatience = std::chrono::seconds(10);

template <class E>
constexpr std::size_t kEvent = event_index<Event, E>();

using S = State;
constexpr Transition<State> kTransitions[] = {
    {S::kWaiting, kEvent<TimePassed>, S::kLooking},
    {S::kLooking, kEvent<Looked>, S::kWaiting, "it is not its turn"},
    {S::kLooking, kEvent<Looked>, S::kRemoving, "a dead predecessor of its own agent has the key"},
    {S::kLooking, kEvent<Looked>, S::kTrying, "it is its turn"},
    {S::kLooking, kEvent<Looked>, S::kOver, "the job has ended, or another one has its name"},
    {S::kLooking, kEvent<Failed>, S::kWaiting},
    {S::kLooking, kEvent<Failed>, S::kOver, "etcd was away for too long, or refuses"},
    {S::kRemoving, kEvent<Removed>, S::kTrying},
    {S::kRemoving, kEvent<Removed>, S::kWaiting, "it was gone, or etcd has not answered"},
    {S::kTrying, kEvent<Tried>, S::kLeading, "its own key is there"},
    {S::kTrying, kEvent<Tried>, S::kWaiting, "another was faster"},
    {S::kTrying, kEvent<Tried>, S::kOver, "etcd refuses"},
    {S::kTrying, kEvent<Failed>, S::kWaiting},
    {S::kTrying, kEvent<Failed>, S::kOver, "as while looking"},
};

}  // namespace

std::span<const Transition<State>> transitions() {
  return kTransitions;
}

const char* name(State state) {
  constexpr std::array<const char*, kStates> kNames = {"waiting", "looking", "removing",
                                                       "trying",  "leading", "over"};
  return kNames[static_cast<std::size_t>(state)];
}

void Machine::act(State next, Action action) {
  HF_ASSERT(is_listed<State>(kTransitions, state_, event_, next));
  state_ = next;
  actions_.push_back(std::move(action));
}

void Machine::wait() {
  HF_ASSERT(is_listed<State>(kTransitions, state_, event_, State::kWaiting));
  state_ = State::kWaiting;
  next_look_ = now_ + kBetweenLooks;
}

void Machine::on(const TimePassed&) {
  if (state_ == State::kWaiting && now_ >= next_look_) act(State::kLooking, Look{});
}

// Without etcd the run's first scheduler gives up soon, to tell its user why. The others wait
// longer.
void Machine::fail(const Error& why) {
  cannot_put_ = cannot_put_ || state_ == State::kTrying;
  if (std::exchange(said_, why.what) != why.what) actions_.push_back(SayWhy{why});
  const bool is_first = !options_.standby && options_.self.attempt <= 1;
  const Instant until = answered_ + (is_first ? kFirstPatience : options_.patience);
  if (why.blame != Blame::kUser && now_ <= until) return wait();
  act(State::kOver, GiveUp{why});
}

void Machine::on(const Looked& e) {
  // Looks that lie so far apart do not tell what happened between them. And if etcd was away, its
  // new leader has restarted the time of all leases.
  if (e.asked > std::exchange(asked_, e.asked) + kFarApart) {
    since_.reset();
    free_since_.reset();
  }
  // An etcd that can be read but not written (its disk may be full) counts as not answering.
  if (!cannot_put_) {
    answered_ = now_;
    said_.clear();
  }
  has_journal_ = e.has_journal;
  journal_run_ = e.run;
  if (e.key) {
    free_since_.reset();
    see(*e.key, e.asked);
  } else if (!free_since_) {
    free_since_ = now_;
  }
  key_ = e.key;
  if (key_ && !is_ours(key_->leader) && lived_run_ == key_->leader.run) {
    act(State::kOver, Refuse{key_->leader.host_name});
  } else if (has_ended()) {
    act(State::kOver, EndWithJob{});
  } else if (is_dead_predecessor()) {
    lived_run_ = key_->leader.run;
    act(State::kRemoving, Remove{key_->created});
  } else if (may_lead()) {
    attempt();
  } else {
    cannot_put_ = false;  // There is no key to put now.
    wait();
  }
}

void Machine::see(const Key& key, Instant asked) {
  const Leader& leader = key.leader;
  if (!since_ || !key_ || key_->created != key.created) since_ = asked;
  last_seen_ = asked;
  predecessor_ = leader.host_name;
  // By now the key of a dead scheduler would be gone.
  if (asked > *since_ + options_.lease + kLateEnd || leader.run == options_.self.run) {
    know_that_it_lived(leader);
  }
  if (journal_run_ == leader.run && is_ours(leader)) was_served_ = true;
  if (leader.host.empty()) return;
  if (key_ != key && is_ours(leader)) actions_.push_back(Found{key, lived_run_ != 0});
  // The scheduler may be dead, since its key stays for a moment. So ask first: to stand by for a
  // dead run, and to go on with it, would be in the way of the next run.
  if (lived_run_ == 0 && !std::exchange(asking_, true)) actions_.push_back(Ask{key});
}

void Machine::on(const Asked& e) {
  asking_ = false;
  if (e.answers && key_ && key_->created == e.created) know_that_it_lived(key_->leader);
}

void Machine::know_that_it_lived(const Leader& leader) {
  const bool was_known = std::exchange(lived_run_, leader.run) != 0;
  if (!was_known && is_ours(leader)) actions_.push_back(StandBy{leader});
}

bool Machine::is_ours(const Leader& leader) const {
  return leader.token_mark == options_.self.token_mark;
}

// When the job has ended, its scheduler removes the journal and the key.
bool Machine::has_ended() const {
  return !key_ && !has_journal_ && was_served_ && (options_.standby || lived_run_ != 0);
}

// A higher attempt of the same agent proves that the former scheduler is dead (P13).
bool Machine::is_dead_predecessor() const {
  const Leader& self = options_.self;
  return key_ && !self.agent.empty() && key_->leader.agent == self.agent &&
         key_->leader.host_name == self.host_name && key_->leader.attempt < self.attempt;
}

bool Machine::may_lead() {
  if (key_ || (lived_run_ == 0 && options_.standby)) return false;
  const bool is_own = journal_run_ == own_run();
  if (lived_run_ == 0 && is_own) lived_run_ = own_run();  // The journal proves it.
  // This scheduler may go on with a run that others have begun, if the journal is there.
  if (lived_run_ != 0 && lived_run_ != options_.self.run) return has_journal_;
  if (!has_journal_ || !journal_run_ || is_own) return true;
  // The journal is of another run. Either all of that run is dead, or one of its standbys takes the
  // key soon. So wait until a standby has had the time for that, with etcd in reach.
  return now_ > *free_since_ + options_.lease + kLateEnd;
}

// The run that it begins, or goes on with because its user says so (MS_ENABLE_RECOVERY).
std::uint64_t Machine::own_run() const {
  if (options_.self.run != 0) return options_.self.run;
  return options_.by_hand_again && journal_run_ ? *journal_run_ : options_.new_run;
}

void Machine::attempt() {
  Leader leader = options_.self;
  leader.run = lived_run_ != 0 ? lived_run_ : own_run();
  act(State::kTrying, Try{std::move(leader)});
}

void Machine::on(const Removed& e) {
  if (e.done) return attempt();
  wait();
}

// The key may have been put though the answer was lost. So it is known by its lease.
void Machine::on(const Tried& e) {
  if (e.key && e.key->lease == e.lease) {
    const auto without = last_seen_ ? std::optional(now_ - *last_seen_) : std::nullopt;
    return act(State::kLeading, Lead{*e.key, lived_run_ != 0, without, predecessor_});
  }
  if (!e.why.what.empty()) return fail(e.why);
  wait();
}

}  // namespace holdfast::election
