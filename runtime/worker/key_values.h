// KeyValues: a process's access to the key-values of its job, which the scheduler keeps until the
// job's end. A value is put once, or changed by version.
//
// It has a thread and a connection of its own, made by the first call, so that also a spare without
// a rank can use it. Nobody else sees what a rehearsal (HOLDFAST_REHEARSE) writes.
// When the connection breaks, what was not answered is said again on the next
// one, and done once. So a call that waits outlasts every death of the scheduler that is shorter
// than HOLDFAST_SCHEDULER_TIMEOUT.
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

  // Waits until the key has a value for good: this one, or an earlier one.
  [[nodiscard]] Status put(const std::string& key, const std::string& value);

  struct Written {
    bool is_set = false;           // The key was at the expected version.
    wire::KeyVersion version = 0;  // The key's by now: of this value, if it is set.
  };
  // Sets the value if the key is at the expected version: 0: it has none; wire::kAnyKeyVersion:
  // whichever. Calls of one process take turns. After an error it may be set or not.
  [[nodiscard]] Result<Written> set(const std::string& key, const std::string& value,
                                    wire::KeyVersion expected);

  // The first of these keys that has a value, of a version newer than the given one. Waits for one,
  // at most for `limit`; zero: only looks. Nothing: there is none yet. `gives_up` is asked now and
  // then in this thread; true ends the wait.
  [[nodiscard]] Result<std::optional<wire::KeyValue>> get(
      const std::vector<std::string>& keys, Duration limit, wire::KeyVersion newer_than = 0,
      const std::function<bool()>& gives_up = nullptr);

  // Calls `there` once the key has a value, in the thread of this object. It waits for that however
  // long the scheduler is gone. Only the job's end and this object's are the end of a watch without
  // a call. A process that can not have the thread for it says so on stderr.
  void watch(const std::string& key, std::function<void()> there);

 private:
  struct Client;
  [[nodiscard]] Result<Client*> client();
  // Waits until the scheduler has answered.
  [[nodiscard]] Result<Written> write(wire::Put put);
  // The same for a rehearsal, and what it has written of some keys.
  [[nodiscard]] Result<Written> write_for_itself(wire::Put put);
  [[nodiscard]] std::optional<wire::KeyValue> written_of(const std::vector<std::string>& keys);

  const config::Settings settings_;
  const pid_t owner_;
  const std::uint64_t writer_;
  std::mutex turns_;  // Of set(): the scheduler remembers one last word of a writer.
  std::mutex mutex_;
  std::unique_ptr<Client> client_;             // Once it was needed.
  std::map<std::string, wire::KeyValue> own_;  // Of a rehearsal.
};

}  // namespace holdfast::runtime
