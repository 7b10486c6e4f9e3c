// bench_cluster: a real scheduler, and N processes played over real sockets by this one.
//
// usage: bench_cluster N HOSTS [CONFIG]
//
// N: 1 to 10000. HOSTS: the processes lie on so many, each with an agent. CONFIG: a config.json;
// all connections are under TLS, with the passwords of HOLDFAST_TLS_*_PASSWORD_FILE. Each process
// played has a connection and a member machine of its own; its steps are empty. Prints one line for
// each figure: how long until all were registered and had the topology, until all had reported and
// gone on, until one that was lost had been replaced and all had gone on (stop, plan, repair,
// resume, told to all and answered by all), until all were back after the scheduler was killed and
// started again; what an idle second costs the scheduler; what it holds for a process. Both sides
// run on the same cores. At most 1,000 connect at the same time: the kernel queues 4,096
// (net.core.somaxconn), and lets those beyond wait for a second. bench/cluster.py runs it beside
// c10d's TCPStore.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "core/member/machine.h"
#include "io/connection.h"
#include "io/loop.h"
#include "os/files.h"
#include "os/host.h"
#include "os/process.h"
#include "os/spawn.h"
#include "os/testing.h"
#include "runtime/jobs/membership.h"
#include "tls/context.h"
#include "tls/password.h"

namespace holdfast {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr Duration kHeartbeat = 1s;
constexpr Duration kAgentBeat = 100ms;
constexpr int kConnectingAtOnce = 1000;

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "bench_cluster: %s\n", why.c_str());
  std::_Exit(1);
}

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

class Cluster;

// One process of the job: a machine on a connection.
class Process {
 public:
  Process(Cluster& cluster, int number) : cluster_(cluster), number_(number) {}
  void start();  // As a new process that has nothing.
  void lose() {  // As if it had been killed.
    lost_ = true;
    if (connection_) std::exchange(connection_, nullptr)->abort(Error{Blame::kWorld, "killed"});
  }
  void beat() {
    if (connection_) connection_->send(wire::Heartbeat{});
  }
  void find(const std::shared_ptr<const AddressBook>& book) {
    if (machine_ && machine_->awaits_addresses()) step(member::AddressesFound{book});
  }
  [[nodiscard]] wire::PlaceState place() const {
    return {.node_id = std::to_string(number_),
            .incarnation = incarnation(),
            .attempt = life_,
            .alive = !lost_,
            .ending = {},
            .detected_ns = 0};
  }

 private:
  [[nodiscard]] Incarnation incarnation() const {
    return life_ << 32 | static_cast<unsigned>(number_ + 1);
  }
  void connect();
  void connected(Result<std::shared_ptr<io::Connection>> made);
  void received(wire::Message message);
  void step(const member::Event& event);
  void carry_out(const member::Send& a) {
    if (connection_) connection_->send(a.message);
  }
  void carry_out(const member::RankGiven&);
  void carry_out(const Assigned& a);
  void carry_out(const member::AwaitAddresses&);
  void carry_out(const member::Released&) {}
  void carry_out(const member::Say&) {}
  void carry_out(const member::BeDrilled&) {}
  void carry_out(const member::TakeSnapshot&) {}
  void carry_out(const member::GiveUp&) { die("a process gave up"); }
  void say(wire::Message message);  // Later, as a trainer does.

  Cluster& cluster_;
  const int number_;
  std::uint64_t life_ = 0;
  bool lost_ = false;
  bool back_ = false;  // It has heard of the job on this connection.
  Version version_ = kNoVersion;
  Generation running_ = 0;
  std::optional<member::Machine> machine_;
  std::shared_ptr<io::Connection> connection_;
};

// An agent: what it says is said of all places of its host. What it leaves for its workers they
// have at once.
class Host {
 public:
  // The first one is the scheduler's.
  Host(Cluster& cluster, int number)
      : cluster_(cluster), name_(number == 0 ? os::host_name() : cat("bench-", number)) {}
  void add(Process& process) { processes_.push_back(&process); }
  void connect();
  void tell_of_places();
  void beat() {
    if (connection_) connection_->send(wire::Heartbeat{});
  }
  void show(Process& process) const { process.find(book_); }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  void received(const wire::Message& message);

  Cluster& cluster_;
  const std::string name_;
  std::vector<Process*> processes_;
  std::shared_ptr<const AddressBook> book_ = std::make_shared<AddressBook>();
  std::shared_ptr<io::Connection> connection_;
};

// The job, and what of it is waited for.
class Cluster {
 public:
  Cluster(int size, int hosts, std::string config);
  void run();

  enum class Event : std::uint8_t { kBack, kGone };  // On a new connection; on with the training.
  void happened(Event event) {
    if (event == awaited_ && --to_come_ == 0) loop.stop();
  }

  void ranked() {
    if (++ranked_ == processes_.size()) all_ranked_ = Clock::now();
  }

  // Calls it when few enough others connect; who has connected, or has not, says so.
  void connect_in_turn(std::function<void()> connect) {
    waiting_.push_back(std::move(connect));
    next_in_turn();
  }
  void connect_is_over() {
    --connecting_;
    next_in_turn();
  }

  io::Loop loop;
  config::Settings settings;
  // Under TLS each process has a context of its own, as a real one has: with the sessions that it
  // may resume. In the clear one serves for all.
  std::vector<io::Membership> of_workers;
  [[nodiscard]] Host& host_of(int number) {
    return hosts_[static_cast<std::size_t>(number) * hosts_.size() /
                  static_cast<std::size_t>(settings.worker_num)];
  }
  [[nodiscard]] bool has_hosts() const { return hosts_.size() > 1; }

 private:
  void next_in_turn() {
    while (connecting_ < kConnectingAtOnce && !waiting_.empty()) {
      ++connecting_;
      const auto connect = std::move(waiting_.front());
      waiting_.pop_front();
      connect();
    }
  }
  void start_scheduler();
  void beat();
  void beat_of_agents();
  double until_all(Event event, const std::function<void()>& begin);
  [[nodiscard]] std::vector<io::Membership> memberships() const;
  [[nodiscard]] double processor_seconds() const;
  [[nodiscard]] double resident() const;

  const std::string config_;
  const os::TemporaryFolder folder_;
  Event awaited_ = Event::kGone;
  int to_come_ = 0;
  int connecting_ = 0;
  std::size_t ranked_ = 0;  // How many were told their ranks and the job's size, the first time.
  Clock::time_point all_ranked_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::deque<Host> hosts_;
  os::Child scheduler_;
};

void Process::start() {
  ++life_;
  lost_ = false;
  version_ = kNoVersion;
  running_ = 0;
  machine_.emplace(wire::Register{.job = cluster_.settings.job,
                                  .node_id = std::to_string(number_),
                                  .incarnation = incarnation(),
                                  .attempt = life_,
                                  .host = cluster_.host_of(number_).name(),
                                  .pid = number_ + 1,
                                  .memory = cluster_.host_of(number_).name()});
  connect();
}

void Process::connect() {
  cluster_.connect_in_turn([this] {
    io::connect(
        cluster_.loop, "127.0.0.1", cluster_.settings.sched_port,
        cluster_.of_workers[static_cast<std::size_t>(number_) % cluster_.of_workers.size()], 60s,
        [this](Result<std::shared_ptr<io::Connection>> made) { connected(std::move(made)); });
  });
}

void Process::connected(Result<std::shared_ptr<io::Connection>> made) {
  cluster_.connect_is_over();
  if (!made) {
    cluster_.loop.after(5ms, [this] { connect(); });
    return;
  }
  connection_ = *made;
  back_ = false;
  connection_->start({.on_message = [this](wire::Message m) { received(std::move(m)); },
                      .on_closed =
                          [this, life = life_](const Error&) {
                            if (life != life_ || lost_) return;
                            connection_.reset();
                            step(member::Disconnected{});
                            connect();
                          }});
  step(member::Connected{cluster_.has_hosts() ? cat("192.0.2.1:", 20'000 + number_) : ""});
}

void Process::received(wire::Message message) {
  if (!std::exchange(back_, true)) cluster_.happened(Cluster::Event::kBack);
  step(member::Received{std::move(message)});
}

void Process::carry_out(const member::RankGiven& /*unused*/) {
  cluster_.ranked();
}

void Process::carry_out(const member::AwaitAddresses& /*unused*/) {
  cluster_.loop.post([this] { cluster_.host_of(number_).show(*this); });
}

// Its trainer is quick.
void Process::carry_out(const Assigned& a) {
  const wire::Assignment& m = a.part;
  if (m.generation <= running_) return;
  if (m.stage == wire::Stage::kStopping) say(wire::Report{m.generation, version_, version_});
  if (m.stage == wire::Stage::kRepairing && m.order.act != wire::Act::kKeep) {
    version_ = m.version;
    say(wire::Repaired{m.generation});
  }
  if (m.stage != wire::Stage::kRunning || !a.peers) return;
  running_ = m.generation;
  version_ = m.version + 1;
  say(wire::Progress{running_, version_, 0});
  cluster_.happened(Cluster::Event::kGone);
}

void Process::step(const member::Event& event) {
  for (auto& action : machine_->step(event)) {
    std::visit([&](const auto& a) { carry_out(a); }, action);
  }
}

void Process::say(wire::Message message) {
  cluster_.loop.post([this, life = life_, message = std::move(message)] {
    if (life == life_) step(member::Told{message});
  });
}

// ---- The job ------------------------------------------------------------------------------------

Cluster::Cluster(int size, int hosts, std::string config) : config_(std::move(config)) {
  settings.job = cat("bench-cluster-", ::getpid());
  settings.sched_port = os::free_port();
  settings.worker_num = size;
  settings.tls_config = config_;
  const auto variable = [](const char* name) {
    return std::string(std::getenv(name) ? std::getenv(name) : "");
  };
  settings.tls_client_password_file = variable("HOLDFAST_TLS_CLIENT_PASSWORD_FILE");
  settings.tls_server_password_file = variable("HOLDFAST_TLS_SERVER_PASSWORD_FILE");
  for (int i = 0; i < hosts; ++i) hosts_.emplace_back(*this, i);
  for (int i = 0; i < size; ++i) {
    processes_.push_back(std::make_unique<Process>(*this, i));
    host_of(i).add(*processes_.back());
  }
}

void Cluster::start_scheduler() {
  os::SpawnOptions options;
  options.argv = {TOY};
  options.environment = {"HOLDFAST_JOB=" + settings.job,
                         cat("MS_SCHED_PORT=", settings.sched_port),
                         "MS_ROLE=MS_SCHED",
                         cat("MS_WORKER_NUM=", settings.worker_num),
                         "MS_ENABLE_RECOVERY=1",
                         "MS_RECOVERY_PATH=" + folder_.path()};
  if (!config_.empty()) {
    options.environment.push_back("HOLDFAST_TLS_CONFIG=" + config_);
    options.environment.push_back("HOLDFAST_TLS_SERVER_PASSWORD_FILE=" +
                                  settings.tls_server_password_file);
  }
  options.output = folder_ / "scheduler.log";
  auto child = os::spawn(options);
  if (!child) die(child.error().what);
  scheduler_ = *std::move(child);
}

void Host::connect() {
  auto membership = runtime::membership_of(cluster_.settings, wire::PeerKind::kAgent);
  const auto again = [this] { cluster_.loop.after(5ms, [this] { connect(); }); };
  if (!membership) return again();
  cluster_.connect_in_turn([this, again, mine = *std::move(membership)] {
    io::connect(cluster_.loop, "127.0.0.1", cluster_.settings.sched_port, mine, 60s,
                [this, again](Result<std::shared_ptr<io::Connection>> made) {
                  cluster_.connect_is_over();
                  if (!made) return again();
                  connection_ = *made;
                  connection_->start({.on_message = [this](const wire::Message& m) { received(m); },
                                      .on_closed =
                                          [this](const Error&) {
                                            connection_.reset();
                                            connect();
                                          }});
                  tell_of_places();
                });
  });
}

void Host::tell_of_places() {
  wire::AgentState state{
      .job = cluster_.settings.job, .agent_id = name_, .host = name_, .places = {}};
  for (const auto* process : processes_) state.places.push_back(process->place());
  if (connection_) connection_->send(state);
}

void Host::received(const wire::Message& message) {
  const auto* addresses = std::get_if<wire::Addresses>(&message);
  if (addresses == nullptr) return;
  auto book = book_->after(*addresses);
  if (!book) die("an agent was told of changes of what it does not know");
  book_ = std::make_shared<AddressBook>(*std::move(book));
  for (Process* process : processes_) show(*process);
}

void Cluster::beat() {
  for (const auto& process : processes_) process->beat();
  loop.after(kHeartbeat, [this] { beat(); });
}

// On several hosts an agent that is silent for half a second may be lost with its host.
void Cluster::beat_of_agents() {
  if (!has_hosts()) return;
  for (auto& host : hosts_) host.beat();
  loop.after(kAgentBeat, [this] { beat_of_agents(); });
}

double Cluster::until_all(Event event, const std::function<void()>& begin) {
  awaited_ = event;
  to_come_ = static_cast<int>(processes_.size());
  const auto started = Clock::now();
  const auto limit = loop.after(300s, [] { die("nothing more happens"); });
  begin();
  loop.run();
  loop.cancel(limit);
  return milliseconds_since(started);
}

double Cluster::processor_seconds() const {
  const auto text = os::read_file(cat("/proc/", scheduler_.pid, "/stat"));
  if (!text) die("the scheduler is gone");
  unsigned long user = 0;
  unsigned long system = 0;
  const auto* fields = text->c_str() + text->rfind(')') + 2;
  if (std::sscanf(fields, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) !=
      2) {
    die("no processor time in /proc");
  }
  return static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Kilobytes.
double Cluster::resident() const {
  const auto text = os::read_file(cat("/proc/", scheduler_.pid, "/statm"));
  if (!text) die("the scheduler is gone");
  return std::strtod(text->c_str() + text->find(' '), nullptr) *
         static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1024;
}

std::vector<io::Membership> Cluster::memberships() const {
  auto membership = runtime::membership_of(settings, wire::PeerKind::kWorker);
  if (!membership) die(membership.error().what);
  if (config_.empty()) return {*membership};
  const auto config = tls::read_config(config_);
  const auto password = tls::password_of(tls::Role::kClient, settings, environ);
  std::vector<io::Membership> all(processes_.size(), *membership);
  for (auto& one : all) {
    auto context = tls::Context::make(*config, tls::Role::kClient, *password);
    if (!context) die(context.error().what);
    one.tls = *std::move(context);
  }
  return all;
}

void Cluster::run() {
  const auto say = [](const char* what, double value, const char* unit) {
    std::printf("%-58s %10.1f %s\n", what, value, unit);
    std::fflush(stdout);
  };
  const double size = settings.worker_num;
  start_scheduler();
  while (!runtime::membership_of(settings, wire::PeerKind::kAgent))
    std::this_thread::sleep_for(1ms);
  const double empty = resident();
  of_workers = memberships();
  const auto began = Clock::now();
  const double gone_on = until_all(Event::kGone, [this] {
    for (const auto& process : processes_) process->start();
    for (auto& host : hosts_) host.connect();
    beat_of_agents();
  });
  const std::chrono::duration<double, std::milli> ranked = all_ranked_ - began;
  say("all registered, with the topology", ranked.count(), "ms");
  say("  ... reported, and gone on with the training", gone_on, "ms");
  say("  processor time of the scheduler until then", processor_seconds() * 1000, "ms");
  say("one lost and replaced; all stopped, planned and gone on",
      until_all(Event::kGone,
                [this] {
                  processes_[0]->lose();
                  host_of(0).tell_of_places();
                  processes_[0]->start();
                  host_of(0).tell_of_places();
                }),
      "ms");
  say("scheduler killed and started again: all back",
      until_all(Event::kBack,
                [this] {
                  ::kill(scheduler_.pid, SIGKILL);
                  (void)os::wait_for(scheduler_.pidfd.get());
                  start_scheduler();
                }),
      "ms");
  beat();
  const double before = processor_seconds();
  loop.after(5s, [this] { loop.stop(); });
  loop.run();
  say("idle, a beat of each process a second", (processor_seconds() - before) / 5 * 100,
      "% of a core");
  say("the scheduler's memory for a process", (resident() - empty) / size, "KB");
  ::kill(scheduler_.pid, SIGKILL);
  (void)os::wait_for(scheduler_.pidfd.get());
  std::_Exit(0);
}

int run(int count, char** arguments) {
  const long size = count > 1 ? std::strtol(arguments[1], nullptr, 10) : 0;
  const long hosts = count > 2 ? std::strtol(arguments[2], nullptr, 10) : 0;
  if (size < 1 || size > 10'000 || hosts < 1 || hosts > size) {
    die("usage: bench_cluster N HOSTS [CONFIG], N from 1 to 10000, and not more HOSTS");
  }
  rlimit limit{};
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  std::printf("%ld processes on %ld host%s, %s\n", size, hosts, hosts == 1 ? "" : "s",
              count > 3 ? "under TLS" : "in the clear");
  Cluster(static_cast<int>(size), static_cast<int>(hosts), count > 3 ? arguments[3] : "").run();
  return 0;
}

}  // namespace
}  // namespace holdfast

int main(int count, char** arguments) {
  return holdfast::run(count, arguments);
}
