// KeyValues: a process's access to the key-values of its job, which the scheduler keeps. A value
// that was put stays until the job's end; the first one put counts.
//
// It has a thread and a connection of its own, made by the first call, so that also a spare without
// a rank can use it. When the connection breaks, what was not answered is said again on the next
// one: nothing changes if that is heard twice. So a call that waits outlasts every death of the
// scheduler that is shorter than HOLDFAST_SCHEDULER_TIMEOUT.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
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

  // The first of these keys that has a value. Waits for one, at most for `limit`; zero: only looks.
  // Nothing: there is none yet.
  [[nodiscard]] Result<std::optional<wire::KeyValue>> get(const std::vector<std::string>& keys,
                                                          Duration limit);

  // Calls `there` once the key has a value, in the thread of this object. It waits for that however
  // long the scheduler is gone. Only the job's end and this object's are the end of a watch without
  // a call. A process that can not have the thread for it says so on stderr.
  void watch(const std::string& key, std::function<void()> there);

 private:
  struct Client;
  [[nodiscard]] Result<Client*> client();

  const config::Settings settings_;
  const pid_t owner_;
  std::mutex mutex_;
  std::unique_ptr<Client> client_;  // Once it was needed.
};

}  // namespace holdfast::runtime
