#include "runtime/worker/key_values.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/text.h"
#include "core/controller/key_values.h"
#include "io/loop.h"
#include "os/errors.h"
#include "os/random_bits.h"
#include "runtime/jobs/scheduler_link.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;
// To a Get: whether a value was found, and which. To a Put: whether the value was set, and the
// key's version (only that is set in `pair`).
struct Reply {
  bool yes = false;
  wire::KeyValue pair;
};

// The most calls that wait at a time. The scheduler hangs up on a process with more than
// kMaxUnanswered requests, of which 100 are left for watches.
constexpr std::size_t kMaxOpen = controller::kMaxUnanswered - 100;
constexpr Duration kBetweenLooks = 20ms;  // Between two calls of gives_up().
// How much longer than the link itself a call waits, for a scheduler that is connected but silent.
constexpr Duration kMargin = 1s;

// Where one thread waits for an answer. The thread may have given up when the answer comes.
struct Wait {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Result<Reply>> result;

  void answer(Result<Reply> given) {
    const std::lock_guard lock(mutex);
    result = std::move(given);
    changed.notify_all();
  }
  // nullopt: `limit` has passed, or the caller gives up.
  std::optional<Result<Reply>> wait(Duration limit,
                                    const std::function<bool()>& gives_up = nullptr) {
    using Clock = std::chrono::steady_clock;
    std::unique_lock lock(mutex);
    const auto until = Clock::now() + std::min<Duration>(limit, config::kNever);
    while (!result && Clock::now() < until && !(gives_up && gives_up())) {
      changed.wait_until(lock, gives_up ? std::min(until, Clock::now() + kBetweenLooks) : until);
    }
    return std::exchange(result, std::nullopt);
  }
};

Status check_key(const std::string& key) {
  if (key.size() <= wire::kMaxKeyBytes) return {};
  return Error{Blame::kUser,
               cat("a key has ", key.size(), " bytes; at most are ", wire::kMaxKeyBytes)};
}

}  // namespace

struct KeyValues::Client {
  struct Request {
    wire::Message message;
    std::function<void(Result<Reply>)> answer;
    bool outlasts_silence = false;  // Ends only by an answer or the job's end.
  };

  explicit Client(const config::Settings& settings)
      : link(loop, settings, wire::PeerKind::kWorker,
             {.on_up = [this] { send_all(); },
              .on_message = [this](wire::Message m) { received(std::move(m)); },
              .on_out_of_reach = [this](const Error& why) { fail_all(why); }}) {
    loop.post([this] { link.open(); });
    thread = std::thread([this] { loop.run(); });
  }
  ~Client() {
    loop.stop();
    thread.join();
  }

  // Any thread.
  void begin(std::uint64_t id, Request request);
  void withdraw(std::uint64_t id);

  // In the loop's thread.
  void send(std::uint64_t id, Request request);
  void send_all();
  void received(wire::Message message);
  void answer(std::uint64_t id, const Result<Reply>& result);
  void fail_all(const Error& why);
  void end(const wire::Reason& why);

  std::atomic<std::uint64_t> newest_id = 0;

  // The loop's thread only.
  io::Loop loop;
  SchedulerLink link;
  std::map<std::uint64_t, Request> open;  // Those without an answer.
  std::optional<Error> over;

  std::thread thread;  // Last: it uses all above.
};

void KeyValues::Client::begin(std::uint64_t id, Request request) {
  loop.post([this, id, request = std::move(request)]() mutable { send(id, std::move(request)); });
}

void KeyValues::Client::withdraw(std::uint64_t id) {
  loop.post([this, id] {
    if (open.erase(id) != 0) link.send(wire::Get{.id = id, .keys = {}, .at_once = true});
  });
}

void KeyValues::Client::send(std::uint64_t id, Request request) {
  if (over) return request.answer(*over);
  if (open.size() >= kMaxOpen && !request.outlasts_silence) {
    return request.answer(
        Error{Blame::kUser, cat(kMaxOpen, " calls wait already, which is the most")});
  }
  link.send(request.message);
  open[id] = std::move(request);
}

void KeyValues::Client::send_all() {
  for (const auto& [id, request] : open) link.send(request.message);
}

void KeyValues::Client::received(wire::Message message) {
  if (auto* got = std::get_if<wire::Got>(&message)) {
    answer(got->id, Reply{got->found, {std::move(got->key), std::move(got->value), got->version}});
  } else if (const auto* kept = std::get_if<wire::Kept>(&message)) {
    if (kept->reason == wire::Reason{}) {
      return answer(kept->id, Reply{kept->is_set, {{}, {}, kept->version}});
    }
    answer(kept->id, Error{Blame::kUser, wording::in_words(kept->reason)});
  } else if (const auto* ended = std::get_if<wire::JobEnded>(&message)) {
    end(ended->reason);
  } else if (const auto* refused = std::get_if<wire::Refused>(&message)) {
    end(refused->reason);
  }
}

void KeyValues::Client::end(const wire::Reason& why) {
  over = Error{Blame::kWorld, wording::in_words(why)};
  link.retire();
  fail_all(*over);
}

void KeyValues::Client::answer(std::uint64_t id, const Result<Reply>& result) {
  const auto request = open.extract(id);
  if (!request.empty()) request.mapped().answer(result);
}

void KeyValues::Client::fail_all(const Error& why) {
  std::erase_if(open, [&](const auto& one) {
    const Request& request = one.second;
    if (request.outlasts_silence && !over) return false;
    request.answer(why);
    return true;
  });
}

KeyValues::KeyValues(config::Settings settings)
    : settings_(std::move(settings)), owner_(::getpid()), writer_(os::random_bits() | 1U) {}

KeyValues::~KeyValues() {
  // A forked child does not have the client's thread.
  if (owner_ != ::getpid()) (void)client_.release();
}

Result<KeyValues::Client*> KeyValues::client() try {
  if (owner_ != ::getpid()) {  // In the child, the mutex may be held for ever.
    return Error{Blame::kUser, "a forked child can not use the key-values of its parent's job"};
  }
  const std::lock_guard lock(mutex_);
  if (!client_) client_ = std::make_unique<Client>(settings_);
  return client_.get();
} catch (const std::system_error& error) {  // A thread or a descriptor that can not be had.
  return os::no_task("the job's key-values can not be used", error.code().value());
}

Status KeyValues::put(const std::string& key, const std::string& value) {
  const auto written = write({.id = 0, .key = key, .value = value});
  return written ? Status{} : Status{written.error()};
}

Result<KeyValues::Written> KeyValues::set(const std::string& key, const std::string& value,
                                          wire::KeyVersion expected) {
  // First: a forked child must not take the lock.
  if (const auto usable = client(); !usable) return usable.error();
  const std::lock_guard turn(turns_);
  return write({.id = 0, .key = key, .value = value, .expected = expected, .writer = writer_});
}

Result<KeyValues::Written> KeyValues::write(wire::Put put) {
  if (const auto good = check_key(put.key); !good) return good.error();
  if (put.key == wire::kSucceeded) {
    return Error{Blame::kUser, cat("the key '", put.key, "' is the scheduler's; use another one")};
  }
  if (put.value.size() > wire::kMaxValueBytes) {
    return Error{Blame::kUser, cat("the value of '", put.key, "' has ", put.value.size(),
                                   " bytes; at most are ", wire::kMaxValueBytes)};
  }
  if (settings_.rehearse >= 0) return write_for_itself(std::move(put));
  const auto client = this->client();
  if (!client) return client.error();
  const auto wait = std::make_shared<Wait>();
  const std::uint64_t id = put.id = ++(*client)->newest_id;
  (*client)->begin(id, {std::move(put), [wait](auto result) { wait->answer(std::move(result)); }});
  const auto answer = wait->wait(settings_.scheduler_timeout + kMargin);
  if (!answer) {
    (*client)->withdraw(id);
    return no_scheduler(settings_, "it is silent");
  }
  if (!*answer) return answer->error();
  return Written{(*answer)->yes, (*answer)->pair.version};
}

Result<KeyValues::Written> KeyValues::write_for_itself(wire::Put put) {
  const auto there = get({put.key}, Duration{});
  if (!there) return there.error();
  const wire::KeyVersion version = *there ? (*there)->version : 0;
  if (put.expected != wire::kAnyKeyVersion && put.expected != version)
    return Written{false, version};
  const std::lock_guard lock(mutex_);
  own_[put.key] = {put.key, std::move(put.value), version + 1};
  return Written{true, version + 1};
}

std::optional<wire::KeyValue> KeyValues::written_of(const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  for (const auto& key : keys) {
    if (const auto own = own_.find(key); own != own_.end()) return own->second;
  }
  return std::nullopt;
}

Result<std::optional<wire::KeyValue>> KeyValues::get(const std::vector<std::string>& keys,
                                                     Duration limit, wire::KeyVersion newer_than,
                                                     const std::function<bool()>& gives_up) {
  if (keys.empty() || keys.size() > wire::kMaxKeys) {
    return Error{Blame::kUser,
                 cat("asked for ", keys.size(), " keys; 1 to ", wire::kMaxKeys, " are allowed")};
  }
  for (const auto& key : keys) {
    if (const auto good = check_key(key); !good) return good.error();
  }
  if (auto own = written_of(keys); own && own->version > newer_than) return own;
  const auto client = this->client();
  if (!client) return client.error();
  const auto wait = std::make_shared<Wait>();
  const std::uint64_t id = ++(*client)->newest_id;
  const bool looks = limit <= Duration{};
  (*client)->begin(id, {wire::Get{id, keys, looks, newer_than},
                        [wait](auto result) { wait->answer(std::move(result)); }});
  auto answer = wait->wait(looks ? settings_.scheduler_timeout + kMargin : limit, gives_up);
  if (answer && !*answer) return answer->error();
  if (answer) {
    return (*answer)->yes ? std::optional(std::move((*answer)->pair)) : std::nullopt;
  }
  (*client)->withdraw(id);
  if (looks) return no_scheduler(settings_, "it is silent");
  return std::optional<wire::KeyValue>();
}

void KeyValues::watch(const std::string& key, std::function<void()> there) {
  const auto client = this->client();
  if (!client) {
    std::fprintf(stderr, "holdfast: nobody watches for '%s': %s\n", key.c_str(),
                 client.error().what.c_str());
    return;
  }
  const std::uint64_t id = ++(*client)->newest_id;
  const auto answer = [there = std::move(there)](const Result<Reply>& result) {
    if (result) there();
  };
  (*client)->begin(id, {wire::Get{.id = id, .keys = {key}}, answer, true});
}

}  // namespace holdfast::runtime
