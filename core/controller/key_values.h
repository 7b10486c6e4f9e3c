// The job's key-values: put once or changed by version, and the questions that wait for them.
//
// Pure. A key stays until the job's end, and each value of it has a version: 1, 2, ... An answer
// has to be held back until the value in it is durable; the machine sees to that.
// docs/protocol/recovery.md, P36.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "wire/messages.h"

namespace holdfast::controller {

using Link = std::uint64_t;  // A connection; each has a greater number than all before. 0: none.

inline constexpr std::size_t kMaxStoredBytes = std::size_t{256} << 20;  // Keys and values together.
inline constexpr std::size_t kMaxStoredKeys = 100'000;                  // Also limits the writers.
inline constexpr std::size_t kMaxUnanswered = 1'000;                    // Questions of one link.

// A value at the time when it was asked for. Many may ask for a large value at once, so it is
// shared.
using Found = std::shared_ptr<const wire::KeyValue>;

// What must be done: tell the asker what was found, once it is durable.
struct Answer {
  Link link = 0;
  std::uint64_t id = 0;  // The id in the asker's Get.
  Found found;
};

class KeyValues {
 public:
  enum class Outcome : std::uint8_t {
    kSet,      // The value is set, and has to be stored.
    kOther,    // The key is at another version than the expected one. Nothing has changed.
    kNoRoom,   // There is no room for the value. Nothing has changed.
    kRepeated  // The same Put was set before: its writer gets the same answer again.
  };
  struct Written {
    Outcome outcome = Outcome::kOther;
    wire::KeyVersion version = 0;  // The key's version after the Put.
    [[nodiscard]] bool is_set() const {
      return outcome == Outcome::kSet || outcome == Outcome::kRepeated;
    }
  };
  void restore(std::vector<wire::KeyValue> kept, const std::vector<wire::Writer>& writers);

  // nullopt: this Put is older than its writer's newest, so nobody waits for the answer.
  [[nodiscard]] std::optional<Written> put(const wire::Put& put);
  // The answers to all Gets that waited for what this key has now. They wait no longer.
  [[nodiscard]] std::vector<Answer> answers(const std::string& key);

  // true: answer now with `found`, the first newer value; null: there is none. false: the Get
  // waits.
  [[nodiscard]] bool get(Link link, const wire::Get& get, Found& found);
  [[nodiscard]] std::size_t pending(Link link) const;      // How many Gets of this link wait.
  [[nodiscard]] Found find(const std::string& key) const;  // Null: there is no value.

  void closed(Link link);
  void clear();  // The job has ended.

  [[nodiscard]] std::size_t size() const { return values_.size(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  using Asker = std::pair<Link, std::uint64_t>;  // A link, and the id of its Get.
  struct Said {
    std::uint64_t id = 0;
    Written written;
  };

  [[nodiscard]] Written write(const wire::Put& put);
  [[nodiscard]] Found newer(const std::string& key, wire::KeyVersion than) const;
  void withdraw(Link link, std::uint64_t id);

  std::map<std::string, Found> values_;
  std::size_t bytes_ = 0;
  std::map<std::uint64_t, Said> writers_;  // The newest Put of each.
  std::map<Link, std::map<std::uint64_t, wire::Get>> pending_;
  std::map<std::string, std::set<Asker>> askers_;  // The Gets in pending_, by key.
};

}  // namespace holdfast::controller
