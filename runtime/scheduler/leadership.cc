#include "runtime/scheduler/leadership.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/number.h"
#include "base/text.h"
#include "io/connection.h"
#include "os/host.h"
#include "os/random_bits.h"
#include "runtime/jobs/agent_watch.h"
#include "runtime/jobs/leader_file.h"
#include "runtime/jobs/membership.h"
#include "runtime/scheduler/server.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;
using Etcd = io::EtcdOperation::Kind;

constexpr Duration kBetweenEtcdLooks = 150ms;
constexpr Duration kAskLimit = 1s;
constexpr Duration kPublishLimit = 10s;
// etcd looks for leases that have ended twice a second.
constexpr Duration kLateEnd = 1s;
constexpr Duration kFirstPatience = 10s;  // Of a run's first scheduler, for etcd.

std::chrono::seconds lease_of(const config::Settings& settings) {
  return std::chrono::seconds(settings.etcd_lease);
}

}  // namespace

std::string to_text(const Leader& leader) {
  return cat("run=", leader.run, "\nhost=", leader.host, "\nport=", leader.port,
             "\nhost_name=", leader.host_name, "\nagent=", leader.agent,
             "\nattempt=", leader.attempt, "\ntoken_mark=", leader.token_mark, '\n');
}

std::optional<Leader> leader_of(std::string_view text) {
  Leader leader;
  std::size_t known = 0;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const auto equals = text.find('=');
    if (end == std::string_view::npos || equals > end) return std::nullopt;
    const auto name = text.substr(0, equals);
    const auto value = text.substr(equals + 1, end - equals - 1);
    text.remove_prefix(end + 1);
    if (value != printable(value) || value.size() > 300) return std::nullopt;
    const bool right = name == "run"          ? read_number(value, leader.run)
                       : name == "port"       ? read_number(value, leader.port)
                       : name == "attempt"    ? read_number(value, leader.attempt)
                       : name == "host"       ? (leader.host = value, true)
                       : name == "host_name"  ? (leader.host_name = value, true)
                       : name == "agent"      ? (leader.agent = value, true)
                       : name == "token_mark" ? (leader.token_mark = value, true)
                                              : false;
    if (!right) return std::nullopt;
    ++known;
  }
  return known == 7 && leader.run != 0 ? std::optional(std::move(leader)) : std::nullopt;
}

// What one scheduler sees of the others until its turn comes.
class Campaign {
 public:
  Campaign(io::Loop& loop, const config::Settings& settings, io::Trace& trace, io::Etcd etcd,
           std::string token_mark)
      : loop_(loop),
        settings_(settings),
        agent_(settings),
        trace_(trace),
        etcd_(std::move(etcd)),
        key_(io::etcd_scheduler(settings.job)),
        head_(io::etcd_head(settings.job)),
        token_mark_(std::move(token_mark)) {}

  Result<std::unique_ptr<Leadership>> wait() {
    while (true) {
      const auto seen = look();
      if (!seen) {
        free_since_.reset();
        if (gives_up(seen.error())) return seen.error();
      } else if (has_ended()) {
        return std::unique_ptr<Leadership>();
      } else if (may_lead()) {
        auto led = lead();
        if (!led && gives_up(led.error())) return led.error();
        if (led && *led) return led;
      }
      pause();
    }
  }

 private:
  // Whoever is the run's first can not begin without etcd, and says so. All others wait for it.
  bool gives_up(const Error& why) {
    if (std::exchange(said_, why.what) != why.what) {
      say(cat("waits to serve job ", settings_.job, ": ", why.what));
    }
    const bool is_first = !settings_.standby && settings_.attempt <= 1;
    const Duration patience = is_first ? kFirstPatience : settings_.scheduler_timeout;
    return why.blame == Blame::kUser || io::Loop::now() > answered_ + patience;
  }

  void pause() {
    if (agent_.gone()) agent_.follow();
    loop_.after(kBetweenEtcdLooks, [this] { loop_.stop(); });
    loop_.run();
  }

  Status look() {
    const Instant asked = io::Loop::now();
    const auto answer = etcd_.transact(
        {{}, {{.kind = Etcd::kRange, .key = key_}, {.kind = Etcd::kRange, .key = head_}}},
        asked + kAskLimit);
    if (!answer) return answer.error();
    answered_ = io::Loop::now();
    said_.clear();
    const auto& heads = answer->ranges[1].entries;
    head_run_ = heads.empty() ? std::nullopt : io::run_in_head(heads.front());
    has_head_ = !heads.empty();
    const auto& keys = answer->ranges[0].entries;
    if (keys.empty()) {
      if (!free_since_) free_since_ = answered_;
      leader_.reset();
      created_ = 0;
      return {};
    }
    free_since_.reset();
    auto leader = leader_of(keys.front().value);
    if (!leader) {
      return Error{Blame::kUser, cat("what etcd has at ", key_, " is of no scheduler; delete it")};
    }
    const std::string other = leader->host_name;
    const bool is_ours = leader->token_mark == token_mark_;
    see(*std::move(leader), keys.front().created, asked);
    if (is_ours || lived_run_ == 0) return {};
    return Error{Blame::kUser,
                 cat("etcd has another job '", settings_.job, "', whose scheduler is on ", other,
                     " and which has another token: give this one another HOLDFAST_JOB")};
  }

  void see(Leader leader, std::int64_t created, Instant now) {
    if (created != created_) {
      created_ = created;
      since_ = now;
    }
    seen_ = now;
    said_where_ = leader.host.empty() ? cat("about to begin on ", leader.host_name)
                                      : cat("at ", host_and_port(leader.host, leader.port), " on ",
                                            leader.host_name);
    // Longer than a dead one's key would be there.
    if (now > since_ + lease_of(settings_) + kLateEnd || leader.run == settings_.run) {
      lived(leader);
    }
    if (has_head_) seen_run_ = leader.run;
    if (leader_ != leader && !leader.host.empty() && leader.token_mark == token_mark_) {
      const auto written =
          write_leader_file(os::runtime_path(settings_.job), {leader.host, leader.port, created});
      if (!written) say(written.error().what);
      if (lived_run_ != 0) say(cat("the scheduler of job ", settings_.job, " is ", said_where_));
    }
    if (lived_run_ == 0 && !leader.host.empty() && !asking_) ask(leader);
    predecessor_ = leader.host_name;
    leader_ = std::move(leader);
  }

  void lived(const Leader& leader) {
    const bool was_known = std::exchange(lived_run_, leader.run) != 0;
    if (was_known || leader.token_mark != token_mark_) return;
    say(cat("stands by for job ", settings_.job, ", whose scheduler is ", said_where_));
    trace_.event("stands_by", {{"job", settings_.job}});
  }

  // Whether it answers. The key of a dead one stays for a moment: whoever went on with that run
  // would be in the way of the next.
  void ask(const Leader& leader) {
    auto membership = membership_of(settings_, wire::PeerKind::kObserver);
    if (!membership) return;
    asking_ = true;
    io::connect(
        loop_, leader.host, leader.port, *std::move(membership), kAskLimit,
        [this, alive = std::weak_ptr(alive_), leader, created = created_](const auto& made) {
          if (alive.expired()) return;  // The loop goes on without this campaign.
          asking_ = false;
          if (!made) return;
          (*made)->start({.on_message = [](const auto&) {}, .on_closed = [](const auto&) {}});
          (*made)->close();
          if (created == created_) lived(leader);
        });
  }

  // A scheduler takes its journal and its key along when the job has ended.
  [[nodiscard]] bool has_ended() const {
    return !leader_ && !has_head_ && seen_run_ != 0 && (settings_.standby || lived_run_ != 0);
  }

  // Whether it is this one's turn.
  bool may_lead() {
    if (leader_) return is_dead_predecessor(*leader_) && remove_predecessor();
    // It goes on with that run, as any other would.
    if (lived_run_ != 0) return has_head_ || lived_run_ == settings_.run;
    if (settings_.standby) return false;
    if (head_run_ == own_run()) lived_run_ = own_run();  // Of a predecessor of its own.
    if (!has_head_ || !head_run_ || lived_run_ != 0) return true;
    // Another run's journal: either all of it is dead, or one that stands by takes it soon.
    // That one has had the time for it, with etcd in reach.
    return free_since_ && io::Loop::now() > *free_since_ + lease_of(settings_) + kLateEnd;
  }

  // That which it begins, or goes on with because its user says so (MS_ENABLE_RECOVERY).
  [[nodiscard]] std::uint64_t own_run() const {
    if (settings_.run != 0) return settings_.run;
    return settings_.enable_recovery && head_run_ ? *head_run_ : drawn_run_;
  }

  // A higher attempt of the same agent is proof of the former one's death (P13).
  [[nodiscard]] bool is_dead_predecessor(const Leader& leader) const {
    return !settings_.agent.empty() && leader.agent == settings_.agent &&
           leader.host_name == os::host_name() && leader.attempt < settings_.attempt;
  }
  bool remove_predecessor() {
    lived_run_ = leader_->run;
    const auto gone = etcd_.transact({{{key_, created_}}, {{.kind = Etcd::kDelete, .key = key_}}},
                                     io::Loop::now() + kAskLimit);
    return gone && gone->done;
  }

  // Nothing: another was faster.
  Result<std::unique_ptr<Leadership>> lead() {
    auto ended = [](const std::string& why) {
      say(cat("this scheduler's lease in etcd may have ended, so this process ends: ", why));
      std::_Exit(1);
    };
    auto lease =
        io::EtcdLease::take(etcd_options(settings_), lease_of(settings_), std::move(ended));
    if (!lease) return lease.error();
    std::unique_ptr<Leadership> made(new Leadership);
    made->settings_ = &settings_;
    made->takes_over_ = lived_run_ != 0;
    made->leader_ = {.run = made->takes_over_ ? lived_run_ : own_run(),
                     .host_name = os::host_name(),
                     .agent = settings_.agent,
                     .attempt = settings_.attempt,
                     .token_mark = token_mark_};
    const std::string text = to_text(made->leader_);
    const auto won = etcd_.transact(
        {{{key_, 0}}, {{.kind = Etcd::kPut, .key = key_, .value = text, .lease = (*lease)->id()}}},
        io::Loop::now() + kAskLimit);
    // It may have been done, and the answer lost: then it is there, with our lease.
    const auto there =
        etcd_.transact({{}, {{.kind = Etcd::kRange, .key = key_}}}, io::Loop::now() + kAskLimit);
    const bool is_mine = there && !there->ranges[0].entries.empty() &&
                         there->ranges[0].entries[0].lease == (*lease)->id();
    if (!is_mine) {
      (*lease)->give_up();
      if (!there) return there.error();
      return won ? Result(std::unique_ptr<Leadership>()) : won.error();
    }
    made->created_ = there->ranges[0].entries[0].created;
    made->lease_ = *std::move(lease);
    if (seen_ != Instant{}) made->without_ = io::Loop::now() - seen_;
    made->predecessor_ = predecessor_;
    return made;
  }

  io::Loop& loop_;
  const config::Settings& settings_;
  const AgentWatch agent_;
  io::Trace& trace_;
  io::Etcd etcd_;
  const std::string key_;
  const std::string head_;
  Instant answered_ = io::Loop::now();  // By etcd.
  Instant seen_{};                      // A scheduler's key.
  Instant since_{};                     // The one that is there now.
  std::optional<Instant> free_since_;   // No key was there, in each look since then.
  std::optional<Leader> leader_;
  std::int64_t created_ = 0;
  bool has_head_ = false;
  std::optional<std::uint64_t> head_run_;
  std::uint64_t seen_run_ = 0;   // Had a journal and a scheduler.
  std::uint64_t lived_run_ = 0;  // It is certain that its scheduler has lived meanwhile.
  std::string predecessor_;
  std::string said_;
  std::string said_where_;
  bool asking_ = false;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  const std::string token_mark_;
  const std::uint64_t drawn_run_ = os::random_bits() | 1U;
};

Result<std::unique_ptr<Leadership>> Leadership::wait_for(io::Loop& loop,
                                                         const config::Settings& settings,
                                                         io::Trace& trace) {
  auto etcd = io::Etcd::open(etcd_options(settings));
  if (!etcd) return etcd.error();
  auto mark = token_mark(settings);
  if (!mark) return mark.error();
  return Campaign(loop, settings, trace, *std::move(etcd), *std::move(mark)).wait();
}

Result<std::unique_ptr<io::Journal>> Leadership::journal() const {
  auto etcd = io::Etcd::open(etcd_options(*settings_));
  if (!etcd) return etcd.error();
  return io::make_etcd_journal(*std::move(etcd), settings_->job, created_);
}

Status Leadership::publish(const std::string& directory, const std::string& host,
                           std::uint16_t port) {
  auto etcd = io::Etcd::open(etcd_options(*settings_));
  if (!etcd) return etcd.error();
  leader_.host = host;
  leader_.port = port;
  const std::string key = io::etcd_scheduler(settings_->job);
  const auto done = etcd->transact(
      {{{key, created_}},
       {{.kind = Etcd::kPut, .key = key, .value = to_text(leader_), .lease = lease_->id()}}},
      io::Loop::now() + kPublishLimit);
  if (!done) return done.error();
  if (!done->done) return Error{Blame::kWorld, "its lease in etcd has ended already"};
  return write_leader_file(directory, {host, port, created_});
}

}  // namespace holdfast::runtime
