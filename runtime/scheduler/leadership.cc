#include "runtime/scheduler/leadership.h"

#include <cstdlib>
#include <type_traits>
#include <utility>

#include "base/number.h"
#include "base/text.h"
#include "io/connection.h"
#include "os/host.h"
#include "os/random_bits.h"
#include "runtime/jobs/agent_watch.h"
#include "runtime/jobs/leader_file.h"
#include "runtime/jobs/membership.h"
#include "runtime/scheduler/say.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;
using Etcd = io::EtcdOperation::Kind;

constexpr Duration kAskLimit = 1s;
constexpr Duration kPublishLimit = 10s;

std::chrono::seconds lease_of(const config::Settings& settings) {
  return std::chrono::seconds(settings.etcd_lease);
}

std::string place_of(const Leader& leader) {
  return leader.host.empty()
             ? cat("about to begin on ", leader.host_name)
             : cat("at ", host_and_port(leader.host, leader.port), " on ", leader.host_name);
}

}  // namespace

std::string to_text(const Leader& leader) {
  return cat("run=", leader.run, "\nhost=", leader.host, "\nport=", leader.port,
             "\nhost_name=", leader.host_name, "\nagent=", leader.agent,
             "\nattempt=", leader.attempt, "\ntoken_mark=", leader.token_mark, '\n');
}

std::optional<Leader> leader_of(std::string_view text) {
  Leader leader;
  const auto line = [&text](std::string_view name, auto& value) {
    const auto end = text.find('\n');
    if (!text.starts_with(name) || end == std::string_view::npos) return false;
    const auto said = text.substr(name.size(), end - name.size());
    text.remove_prefix(end + 1);
    if constexpr (std::is_same_v<decltype(value), std::string&>) {
      value = said;
      return said == printable(said) && said.size() <= 300;
    } else {
      return read_number(said, value);
    }
  };
  const bool whole = line("run=", leader.run) && line("host=", leader.host) &&
                     line("port=", leader.port) && line("host_name=", leader.host_name) &&
                     line("agent=", leader.agent) && line("attempt=", leader.attempt) &&
                     line("token_mark=", leader.token_mark);
  if (!whole || !text.empty() || leader.run == 0) return std::nullopt;
  return leader;
}

// Carries out what the election machine says, until this process leads or has to end.
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
        machine_({.self = {.run = settings.run,
                           .host_name = os::host_name(),
                           .agent = settings.agent,
                           .attempt = settings.attempt,
                           .token_mark = std::move(token_mark)},
                  .new_run = os::random_bits() | 1U,
                  .standby = settings.standby,
                  .by_hand_again = settings.enable_recovery,
                  .lease = lease_of(settings),
                  .patience = settings.scheduler_timeout},
                 io::Loop::now()) {}

  Result<std::unique_ptr<Leadership>> run() {
    while (!result_) {
      if (agent_.gone()) agent_.follow();
      loop_.after(*machine_.deadline() - io::Loop::now(), [this] { loop_.stop(); });
      loop_.run();
      bring(election::TimePassed{});
    }
    return *std::move(result_);
  }

 private:
  void bring(const election::Event& event) {
    for (const auto& action : machine_.step(io::Loop::now(), event)) {
      std::visit([this](const auto& a) { carry_out(a); }, action);
    }
  }

  Result<io::EtcdAnswer> transact(const io::EtcdTransaction& what) {
    return etcd_.transact(what, io::Loop::now() + kAskLimit);
  }

  Result<election::Looked> look() {
    election::Looked seen{.asked = io::Loop::now()};
    const auto answer =
        transact({{}, {{.kind = Etcd::kRange, .key = key_}, {.kind = Etcd::kRange, .key = head_}}});
    if (!answer) return answer.error();
    const auto& keys = answer->ranges[0].entries;
    const auto& heads = answer->ranges[1].entries;
    seen.has_journal = !heads.empty();
    if (seen.has_journal) seen.run = io::run_in_head(heads.front());
    if (keys.empty()) return seen;
    auto leader = leader_of(keys.front().value);
    if (!leader) {
      return Error{Blame::kUser, cat("what etcd has at ", key_, " is of no scheduler; delete it")};
    }
    seen.key = {*std::move(leader), keys.front().created, keys.front().lease};
    return seen;
  }
  void carry_out(const election::Look&) {
    auto seen = look();
    if (seen) return bring(*std::move(seen));
    bring(election::Failed{seen.error()});
  }
  void carry_out(const election::Remove& remove) {
    const auto gone = transact({{{key_, remove.created}}, {{.kind = Etcd::kDelete, .key = key_}}});
    bring(election::Removed{gone && gone->done});
  }
  void carry_out(const election::Try& what) {
    auto ended = [](const std::string& why) {
      say(cat("this scheduler's lease in etcd may have ended, so this process ends: ", why));
      std::_Exit(1);
    };
    auto lease =
        io::EtcdLease::take(etcd_options(settings_), lease_of(settings_), std::move(ended));
    if (!lease) return bring(election::Failed{lease.error()});
    lease_ = *std::move(lease);
    const auto id = lease_->id();
    const std::string text = to_text(what.leader);
    const auto put =
        transact({{{key_, 0}}, {{.kind = Etcd::kPut, .key = key_, .value = text, .lease = id}}});
    const auto there = look();
    if (!there) bring(election::Failed{there.error()});
    if (there) bring(election::Tried{id, there->key, put ? Error{} : put.error()});
    if (lease_) std::exchange(lease_, nullptr)->give_up();
  }

  void carry_out(const election::Ask& ask) {
    const Leader& leader = ask.key.leader;
    auto membership = membership_of(settings_, wire::PeerKind::kObserver);
    if (!membership) return bring(election::Asked{ask.key.created, false});
    io::connect(
        loop_, leader.host, leader.port, *std::move(membership), kAskLimit,
        [this, alive = std::weak_ptr(alive_), created = ask.key.created](const auto& made) {
          if (alive.expired()) return;  // The loop outlives this campaign.
          if (made) {
            (*made)->start({.on_message = [](const auto&) {}, .on_closed = [](const auto&) {}});
            (*made)->close();
          }
          bring(election::Asked{created, made.has_value()});
        });
  }
  void carry_out(const election::StandBy& stands_by) {
    say(cat("stands by for job ", settings_.job, ", whose scheduler is ",
            place_of(stands_by.leader)));
    trace_.event("stands_by", {{"job", settings_.job}});
  }
  void carry_out(const election::Found& found) {
    const Leader& leader = found.key.leader;
    const auto written = write_leader_file(os::runtime_path(settings_.job),
                                           {leader.host, leader.port, found.key.created});
    if (!written) say(written.error().what);
    if (found.is_news) say(cat("the scheduler of job ", settings_.job, " is ", place_of(leader)));
  }
  void carry_out(const election::SayWhy& waits) {
    say(cat("waits to serve job ", settings_.job, ": ", waits.why.what));
  }
  void carry_out(const election::Lead& lead) {
    result_ = std::unique_ptr<Leadership>(new Leadership(settings_, lead, std::move(lease_)));
  }
  void carry_out(const election::EndWithJob&) { result_ = std::unique_ptr<Leadership>(); }
  void carry_out(const election::GiveUp& end) { result_ = end.why; }
  void carry_out(const election::Refuse& other) {
    result_ = Error{Blame::kUser, cat("etcd has another job '", settings_.job,
                                      "', whose scheduler is on ", other.host,
                                      " and which has another token: give this one another "
                                      "HOLDFAST_JOB")};
    carry_out(election::SayWhy{result_->error()});
  }

  io::Loop& loop_;
  const config::Settings& settings_;
  const AgentWatch agent_;
  io::Trace& trace_;
  io::Etcd etcd_;
  const std::string key_;
  const std::string head_;
  election::Machine machine_;
  std::unique_ptr<io::EtcdLease> lease_;
  std::optional<Result<std::unique_ptr<Leadership>>> result_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

Result<std::unique_ptr<Leadership>> Leadership::wait_for(io::Loop& loop,
                                                         const config::Settings& settings,
                                                         io::Trace& trace) {
  auto etcd = io::Etcd::open(etcd_options(settings));
  if (!etcd) return etcd.error();
  auto mark = token_mark(settings);
  if (!mark) return mark.error();
  return Campaign(loop, settings, trace, *std::move(etcd), *std::move(mark)).run();
}

Result<std::unique_ptr<io::Journal>> Leadership::journal() const {
  auto etcd = io::Etcd::open(etcd_options(*settings_));
  if (!etcd) return etcd.error();
  return io::make_etcd_journal(*std::move(etcd), settings_->job, lead_.key.created);
}

Status Leadership::publish(const std::string& directory, const std::string& host,
                           std::uint16_t port) {
  auto etcd = io::Etcd::open(etcd_options(*settings_));
  if (!etcd) return etcd.error();
  Leader& leader = lead_.key.leader;
  leader.host = host;
  leader.port = port;
  const std::string key = io::etcd_scheduler(settings_->job);
  const std::string text = to_text(leader);
  const auto done =
      etcd->transact({{{key, lead_.key.created}},
                      {{.kind = Etcd::kPut, .key = key, .value = text, .lease = lease_->id()}}},
                     io::Loop::now() + kPublishLimit);
  if (!done) return done.error();
  if (!done->done) return Error{Blame::kWorld, "its lease in etcd has ended already"};
  return write_leader_file(directory, {host, port, lead_.key.created});
}

}  // namespace holdfast::runtime
