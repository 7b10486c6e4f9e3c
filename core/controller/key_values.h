// The job's key-values: put once, asked for by whoever waits for them.
//
// Pure. A value that was put stays until the job's end. What is told of a value has to be held back
// until it is durable; the machine sees to that. docs/protocol/recovery.md, P36.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "wire/messages.h"

namespace holdfast::controller {

using Link = std::uint64_t;  // A connection; each has a greater number than all before. 0: none.

inline constexpr std::size_t kMaxStoredBytes = std::size_t{256} << 20;  // Keys and values together.
inline constexpr std::size_t kMaxStoredKeys = 100'000;
inline constexpr std::size_t kMaxPendingGets = 1'000;  // Of a link.

// What must be done: tell the asker the value of this key (KeyValues::find), once it is durable.
// The value is not in here: many may ask for a large one at once, and it need not lie about for
// each.
struct Answer {
  Link link = 0;
  std::uint64_t id = 0;  // Of its Get.
  std::string key;
};

class KeyValues {
 public:
  enum class Put : std::uint8_t { kNew, kKnown, kNoRoom };
  void restore(std::vector<wire::KeyValue> stored);  // As the journal had them.

  // kKnown: the key has a value already, and that one stays.
  [[nodiscard]] Put put(const std::string& key, const std::string& value);
  // For all who wait for this key, which has a value by now. They do not wait any more.
  [[nodiscard]] std::vector<Answer> answers(const std::string& key);

  enum class Asked : std::uint8_t { kAnswered, kWaits, kTooMany };
  // kAnswered: `key` is the first that has a value; nothing: none has.
  [[nodiscard]] Asked get(Link link, const wire::Get& get, std::optional<std::string>& key);
  [[nodiscard]] const std::string* find(const std::string& key) const;  // Null: there is no value.

  void closed(Link link);
  void clear();  // The job has ended.

  [[nodiscard]] std::size_t size() const { return values_.size(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  using Asker = std::pair<Link, std::uint64_t>;  // And the number of its Get.

  void withdraw(Link link, std::uint64_t id);

  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
  std::map<Link, std::map<std::uint64_t, std::vector<std::string>>> pending_;
  std::map<std::string, std::set<Asker>> askers_;  // The same, by key.
};

}  // namespace holdfast::controller
