#include "runtime/worker/key_values.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <limits>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/text.h"
#include "io/connection.h"
#include "io/loop.h"
#include "os/errors.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;
using Found = std::optional<wire::KeyValue>;

constexpr Duration kFirstRetry = 50ms;
constexpr Duration kLastRetry = 1s;
constexpr Duration kReachLimit = 5s;

// Where one thread waits for an answer. It may have given up when that comes.
struct Wait {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Result<Found>> result;

  void answer(Result<Found> given) {
    const std::lock_guard lock(mutex);
    result = std::move(given);
    changed.notify_all();
  }
  // Nothing: `limit` has passed.
  std::optional<Result<Found>> wait(Duration limit) {
    std::unique_lock lock(mutex);
    const auto longest = std::chrono::steady_clock::time_point::max() - 1s;
    const auto now = std::chrono::steady_clock::now();
    const auto until = limit < longest - now ? now + limit : longest;
    changed.wait_until(lock, until, [&] { return result.has_value(); });
    return std::exchange(result, std::nullopt);
  }
};

Status check_key(const std::string& key) {
  if (key.size() <= wire::kMaxKeyBytes) return {};
  return Error{Blame::kUser,
               cat("a key has ", key.size(), " bytes; at most are ", wire::kMaxKeyBytes)};
}

}  // namespace

Error no_scheduler(const config::Settings& settings, const std::string& why) {
  char limit[32];
  std::snprintf(limit, sizeof(limit), "%g",
                std::chrono::duration<double>(settings.scheduler_timeout).count());
  return {Blame::kWorld, cat("no scheduler answers at ", settings.sched_host, ":",
                             settings.sched_port, " within ", limit,
                             " s (MS_SCHED_HOST, MS_SCHED_PORT, "
                             "HOLDFAST_SCHEDULER_TIMEOUT or MS_TOPO_TIMEOUT): ",
                             why)};
}

struct KeyValues::Client {
  using Answer = std::function<void(Result<Found>)>;
  struct Request {
    wire::Message message;
    Answer answer;
  };

  explicit Client(const config::Settings& s) : settings(s) {}
  ~Client();

  // Any thread.
  void begin(std::uint64_t id, Request request);
  void withdraw(std::uint64_t id);

  // In the loop's thread.
  void send(std::uint64_t id, Request request);
  void try_connect();
  void connected(std::shared_ptr<io::Connection> fresh);
  void no_connection(const Error& why);
  void received(wire::Message message);
  void answer(std::uint64_t id, const Result<Found>& result);
  void fail_all(const Error& why);

  const config::Settings& settings;
  std::atomic<std::uint64_t> newest_id = 0;

  // The loop's thread only.
  io::Loop loop;
  std::map<std::uint64_t, Request> open;  // Not answered.
  std::shared_ptr<io::Connection> connection;
  bool connecting = false;
  bool answered = false;  // On this connection.
  Instant alone_since{};
  Duration delay = kFirstRetry;
  std::optional<Error> over;
  bool stopping = false;

  std::thread thread;  // Last: it uses all above.
};

KeyValues::Client::~Client() {
  if (!thread.joinable()) return;
  loop.post([this] {
    stopping = true;
    connection ? connection->abort({Blame::kWorld, "this process hangs up"}) : loop.stop();
  });
  thread.join();
}

void KeyValues::Client::begin(std::uint64_t id, Request request) {
  loop.post([this, id, request = std::move(request)]() mutable { send(id, std::move(request)); });
}

void KeyValues::Client::withdraw(std::uint64_t id) {
  loop.post([this, id] {
    if (open.erase(id) == 0 || !connection) return;
    connection->send(wire::Get{.id = id, .keys = {}, .at_once = true});
  });
}

void KeyValues::Client::send(std::uint64_t id, Request request) {
  if (over) return request.answer(*over);
  const auto& asked = open[id] = std::move(request);
  if (connection) return connection->send(asked.message);
  if (std::exchange(connecting, true)) return;
  alone_since = io::Loop::now();
  delay = kFirstRetry;
  try_connect();
}

void KeyValues::Client::try_connect() {
  connecting = true;
  if (stopping) return loop.stop();
  const io::ConnectionOptions options{.queue_limit_bytes = std::numeric_limits<std::size_t>::max()};
  io::connect(
      loop, settings.sched_host, settings.sched_port, kReachLimit,
      [this](Result<std::shared_ptr<io::Connection>> result) {
        result ? connected(*std::move(result)) : no_connection(result.error());
      },
      options);
}

void KeyValues::Client::connected(std::shared_ptr<io::Connection> fresh) {
  connecting = answered = false;
  connection = std::move(fresh);
  connection->start({.on_message = [this](wire::Message m) { received(std::move(m)); },
                     .on_closed =
                         [this](const Error& why) {
                           connection.reset();
                           if (answered) alone_since = io::Loop::now();
                           no_connection(why);
                         }});
  if (stopping) return connection->close();
  for (const auto& [id, request] : open) connection->send(request.message);
}

// Who waits for nothing needs none.
void KeyValues::Client::no_connection(const Error& why) {
  connecting = false;
  if (stopping) return loop.stop();
  if (io::Loop::now() - alone_since >= settings.scheduler_timeout)
    fail_all(no_scheduler(settings, why.what));
  if (open.empty() || over) return;
  connecting = true;
  loop.after(delay, [this] { try_connect(); });
  delay = std::min(kLastRetry, delay * 2);
}

void KeyValues::Client::received(wire::Message message) {
  if (!std::exchange(answered, true)) delay = kFirstRetry;
  if (auto* got = std::get_if<wire::Got>(&message)) {
    answer(got->id, got->found ? Found({std::move(got->key), std::move(got->value)}) : Found());
  } else if (const auto* kept = std::get_if<wire::Kept>(&message)) {
    if (kept->reason == wire::Reason{}) return answer(kept->id, Found());
    answer(kept->id, Error{Blame::kUser, wording::in_words(kept->reason)});
  } else if (const auto* ended = std::get_if<wire::JobEnded>(&message)) {
    over = Error{Blame::kWorld, wording::in_words(ended->reason)};
    fail_all(*over);
  }
}

void KeyValues::Client::answer(std::uint64_t id, const Result<Found>& result) {
  const auto request = open.extract(id);
  if (!request.empty()) request.mapped().answer(result);
}

void KeyValues::Client::fail_all(const Error& why) {
  for (const auto& [id, request] : std::exchange(open, {})) request.answer(why);
}

KeyValues::KeyValues(config::Settings settings)
    : settings_(std::move(settings)), owner_(::getpid()) {}

KeyValues::~KeyValues() {
  if (owner_ != ::getpid()) (void)client_.release();  // A forked child has not its thread.
}

Result<KeyValues::Client*> KeyValues::client() try {
  if (owner_ != ::getpid()) {  // The mutex may be held for ever.
    return Error{Blame::kUser, "a forked child can not use the key-values of its parent's job"};
  }
  const std::lock_guard lock(mutex_);
  if (!client_) {
    auto made = std::make_unique<Client>(settings_);
    made->thread = std::thread([client = made.get()] { client->loop.run(); });
    client_ = std::move(made);
  }
  return client_.get();
} catch (const std::system_error& error) {  // A thread or a descriptor that can not be had.
  return os::no_task("the job's key-values can not be used", error.code().value());
}

Status KeyValues::put(const std::string& key, const std::string& value) {
  if (const auto good = check_key(key); !good) return good;
  if (value.size() > wire::kMaxValueBytes) {
    return Error{Blame::kUser, cat("the value of '", key, "' has ", value.size(),
                                   " bytes; at most are ", wire::kMaxValueBytes)};
  }
  const auto client = this->client();
  if (!client) return client.error();
  const auto wait = std::make_shared<Wait>();
  const std::uint64_t id = ++(*client)->newest_id;
  (*client)->begin(id, {wire::Put{id, key, value}, [wait](auto result) { wait->answer(result); }});
  const auto answer = wait->wait(settings_.scheduler_timeout + kLastRetry);
  if (answer) return *answer ? Status{} : Status{answer->error()};
  (*client)->withdraw(id);
  return no_scheduler(settings_, "it is silent");
}

Result<std::optional<wire::KeyValue>> KeyValues::get(const std::vector<std::string>& keys,
                                                     Duration limit) {
  if (keys.empty() || keys.size() > wire::kMaxKeys) {
    return Error{Blame::kUser,
                 cat("asked for ", keys.size(), " keys; 1 to ", wire::kMaxKeys, " are allowed")};
  }
  for (const auto& key : keys) {
    if (const auto good = check_key(key); !good) return good.error();
  }
  const auto client = this->client();
  if (!client) return client.error();
  const auto wait = std::make_shared<Wait>();
  const std::uint64_t id = ++(*client)->newest_id;
  const bool looks = limit <= Duration{};
  (*client)->begin(id, {wire::Get{id, keys, looks}, [wait](auto result) { wait->answer(result); }});
  const auto answer = wait->wait(looks ? settings_.scheduler_timeout + kLastRetry : limit);
  if (answer) return *answer;
  (*client)->withdraw(id);
  if (looks) return no_scheduler(settings_, "it is silent");
  return std::optional<wire::KeyValue>();
}

void KeyValues::watch(const std::string& key, std::function<void()> there) {
  const auto client = this->client();
  if (!client) return;
  const std::uint64_t id = ++(*client)->newest_id;
  (*client)->begin(id,
                   {wire::Get{.id = id, .keys = {key}}, [there = std::move(there)](auto result) {
                      if (result) there();
                    }});
}

}  // namespace holdfast::runtime
