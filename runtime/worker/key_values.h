// KeyValues: a process's access to the key-values of its job, which the scheduler keeps until the
// job's end. A value is put once, or changed by version.
//
// It has a thread and a connection of its own, made by the first call, so that also a spare without
// a rank can use it. Nobody else sees what a rehearsal (HOLDFAST_REHEARSE) writes. When the
// connection breaks, requests without an answer are sent again on the next one, and take effect
// once. So a call outlasts every absence of the scheduler that is shorter than
// HOLDFAST_SCHEDULER_TIMEOUT.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "config/settings.h"
#include "wire/messages.h"

namespace holdfast::runtime {

// Any thread. Errors: kUser: a key, a value or a list of keys is too long, there is no room, too
// many calls wait, or this is a forked child; kWorld: the job is over, or the scheduler has been
// gone for longer than HOLDFAST_SCHEDULER_TIMEOUT.
class KeyValues {
 public:
  explicit KeyValues(config::Settings settings);
  ~KeyValues();  // Requires: no call is under way. Watches are not called any more.
  KeyValues(const KeyValues&) = delete;
  KeyValues& operator=(const KeyValues&) = delete;

  // Gives the key this value if it has none. Returns once the key's value, this one or an earlier
  // one, is durable.
  [[nodiscard]] Status put(const std::string& key, const std::string& value);

  struct Written {
    bool is_set = false;           // The key was at the expected version.
    wire::KeyVersion version = 0;  // The key's version now: this value's, if is_set.
  };
  // Sets the value if the key is at the expected version. 0: if the key has no value;
  // wire::kAnyKeyVersion: in any case. Calls in one process run one after another. After an error
  // the value may be set or not.
  [[nodiscard]] Result<Written> set(const std::string& key, const std::string& value,
                                    wire::KeyVersion expected);

  // The first of `keys` whose value has a version greater than `newer_than`. Waits for one, for
  // `limit` at most; zero: only looks. nullopt: there is none yet. `gives_up` is called every 20 ms
  // in the caller's thread; true ends the wait.
  [[nodiscard]] Result<std::optional<wire::KeyValue>> get(
      const std::vector<std::string>& keys, Duration limit, wire::KeyVersion newer_than = 0,
      const std::function<bool()>& gives_up = nullptr);

  // Calls `there` once the key has a value, in the thread of this object, however long the
  // scheduler is out of reach until then. A watch ends without a call only if the job ends or this
  // object is destroyed. If its thread can not be started, says so on stderr, and does not watch.
  void watch(const std::string& key, std::function<void()> there);

 private:
  struct Client;
  [[nodiscard]] Result<Client*> client();
  // Sends `put`, and waits for the scheduler's answer.
  [[nodiscard]] Result<Written> write(wire::Put put);
  // write() of a rehearsal, only into own_; and the first of `keys` that is there.
  [[nodiscard]] Result<Written> write_for_itself(wire::Put put);
  [[nodiscard]] std::optional<wire::KeyValue> written_of(const std::vector<std::string>& keys);

  const config::Settings settings_;
  const pid_t owner_;
  const std::uint64_t writer_;
  std::mutex turns_;  // For set(): the scheduler remembers only the last write of a writer.
  std::mutex mutex_;
  std::unique_ptr<Client> client_;             // Null until it is needed.
  std::map<std::string, wire::KeyValue> own_;  // What a rehearsal has written.
};

}  // namespace holdfast::runtime
