// The job's key-values: put once or changed by version, asked for by whoever waits for them.
//
// Pure. A key stays until the job's end, and each value of it has a version: 1, 2, ... What is told
// of a value has to be held back until it is durable; the machine sees to that.
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
inline constexpr std::size_t kMaxStoredKeys = 100'000;                  // As many writers, too.
inline constexpr std::size_t kMaxUnanswered = 1'000;                    // Words of a link.

// A value as it was when it was asked for. Many may ask for a large one at once, so it is shared.
using Found = std::shared_ptr<const wire::KeyValue>;

// What must be done: tell the asker what was found, once it is durable.
struct Answer {
  Link link = 0;
  std::uint64_t id = 0;  // Of its Get.
  Found found;
};

class KeyValues {
 public:
  enum class Outcome : std::uint8_t {
    kSet,      // To be stored.
    kOther,    // The key is at another version than the expected one. Nothing has changed.
    kNoRoom,   // The same.
    kRepeated  // It was set when this writer said it first, who is told the same again.
  };
  struct Written {
    Outcome outcome = Outcome::kOther;
    wire::KeyVersion version = 0;  // The key's.
    [[nodiscard]] bool is_set() const {
      return outcome == Outcome::kSet || outcome == Outcome::kRepeated;
    }
  };
  void restore(std::vector<wire::KeyValue> kept, const std::vector<wire::Writer>& writers);

  // Nothing: it is older than what its writer said last, so nobody waits for the answer.
  [[nodiscard]] std::optional<Written> put(const wire::Put& put);
  // For all who wait for what this key has by now. They do not wait any more.
  [[nodiscard]] std::vector<Answer> answers(const std::string& key);

  // `found` is the first that is newer; null: none is. False: it waits for one.
  [[nodiscard]] bool get(Link link, const wire::Get& get, Found& found);
  [[nodiscard]] std::size_t pending(Link link) const;      // How many wait.
  [[nodiscard]] Found find(const std::string& key) const;  // Null: there is no value.

  void closed(Link link);
  void clear();  // The job has ended.

  [[nodiscard]] std::size_t size() const { return values_.size(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  using Asker = std::pair<Link, std::uint64_t>;  // And the number of its Get.
  struct Said {
    std::uint64_t id = 0;
    Written written;
  };

  [[nodiscard]] Written write(const wire::Put& put);
  [[nodiscard]] Found newer(const std::string& key, wire::KeyVersion than) const;
  void withdraw(Link link, std::uint64_t id);

  std::map<std::string, Found> values_;
  std::size_t bytes_ = 0;
  std::map<std::uint64_t, Said> writers_;  // The last word of each.
  std::map<Link, std::map<std::uint64_t, wire::Get>> pending_;
  std::map<std::string, std::set<Asker>> askers_;  // The same, by key.
};

}  // namespace holdfast::controller
