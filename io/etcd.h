// Etcd: asks the members of an etcd cluster, over the JSON gateway of its version 3 API.
//
// Every call blocks, but not for longer than its limit. Answers are checked. A request without an
// answer may have been carried out all the same: a caller may repeat it only if it can be done
// twice.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace holdfast::io {

// As HOLDFAST_ETCD, HOLDFAST_ETCD_CA, _CERT and _KEY say it.
struct EtcdOptions {
  std::string members;  // "http://h1:2379,http://h2:2379", all https or none.
  std::string authority;
  std::string certificate;
  std::string key;
};

// By default etcd takes 1.5 MiB and 128 operations in one request. These limits are lower, because
// a request has some bytes and operations that are not counted.
inline constexpr std::size_t kEtcdBytes = 1'400'000;
inline constexpr std::size_t kEtcdOperations = 120;

struct EtcdEntry {
  std::string key;
  std::string value;
  std::int64_t created = 0;  // The revision that made the key.
  std::int64_t changed = 0;  // The revision that changed it last.
  std::int64_t lease = 0;    // 0: none.
};

struct EtcdOperation {
  enum class Kind : std::uint8_t { kPut, kDelete, kRange };
  Kind kind = Kind::kPut;
  std::string key;
  std::string end = {};    // kDelete, kRange: all keys from `key` up to this; empty: `key` alone.
  std::string value = {};  // kPut.
  std::int64_t lease = 0;  // kPut.
  std::int64_t limit = 0;  // kRange: so many at most; 0: all.
  std::int64_t revision = 0;  // kRange: as of this revision; 0: as of now.
};

// Holds if the key was made by the revision `created` and is still there; with 0, if there is no
// such key. If `changed` is set: holds if that revision was the last one to change the key.
struct EtcdCondition {
  std::string key;
  std::int64_t created = 0;
  std::optional<std::int64_t> changed = {};
};

struct EtcdTransaction {
  std::vector<EtcdCondition> conditions;
  std::vector<EtcdOperation> operations;  // All, if all conditions hold; else none.
};

struct EtcdRange {
  std::vector<EtcdEntry> entries;  // Sorted by key.
  bool more = false;               // The limit has cut it.
};

struct EtcdAnswer {
  bool done = false;  // All conditions have held.
  std::int64_t revision = 0;
  std::vector<EtcdRange> ranges;  // One for each kRange, in order.
};

struct EtcdLeaseGrant {
  std::int64_t id = 0;
  Duration ttl{};  // At least the time that was asked for.
};

// For one thread at a time.
class Etcd {
 public:
  // Errors (Blame::kUser) name the variable. Asks nobody yet.
  static Result<Etcd> open(const EtcdOptions& options);
  Etcd(Etcd&&) noexcept;
  Etcd& operator=(Etcd&&) noexcept;
  ~Etcd();

  // Each call asks the members in turn until one answers, or until `until`. It begins with the
  // member that has answered last. Blame::kUser: etcd refuses, and would again.
  Result<EtcdAnswer> transact(const EtcdTransaction& transaction, Instant until);
  Result<EtcdLeaseGrant> grant(std::chrono::seconds ttl, Instant until);
  // Renews a lease. Returns how long it lives from when etcd got this request; nullopt: it has
  // ended.
  Result<std::optional<Duration>> keep_alive(std::int64_t lease, Instant until);
  Status revoke(std::int64_t lease, Instant until);

 private:
  class Impl;
  explicit Etcd(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The end of the keys that begin with `prefix`, for EtcdOperation::end.
[[nodiscard]] std::string end_of(std::string prefix);

}  // namespace holdfast::io
