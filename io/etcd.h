// Etcd: asks the members of an etcd cluster, over the JSON gateway of its version 3 API.
//
// Everything blocks, and not for longer than it is told. What etcd answers is checked before it is
// believed. What a member has not answered may have been done all the same: whoever asks again has
// to ask for what can be done twice.
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

// What etcd takes in one request by default is 1.5 MiB and 128 operations; some of it is not ours.
inline constexpr std::size_t kEtcdBytes = 1'400'000;
inline constexpr std::size_t kEtcdOperations = 120;

struct EtcdEntry {
  std::string key;
  std::string value;
  std::int64_t created = 0;  // The revision that made the key,
  std::int64_t changed = 0;  // and the one that changed it last.
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
  std::int64_t revision = 0;  // kRange: as of then; 0: as of now.
};

// The key was made by this revision and is still there; 0: there is no such key. Or, where that is
// said, it was `changed` last by that one.
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
  std::vector<EtcdEntry> entries;  // By key.
  bool more = false;               // The limit has cut it.
};

struct EtcdAnswer {
  bool done = false;  // All conditions have held.
  std::int64_t revision = 0;
  std::vector<EtcdRange> ranges;  // One for each kRange, in order.
};

struct EtcdLeaseGrant {
  std::int64_t id = 0;
  Duration ttl{};  // At least what was asked for.
};

// For one thread at a time.
class Etcd {
 public:
  // Errors (Blame::kUser) name the variable. Asks nobody yet.
  static Result<Etcd> open(const EtcdOptions& options);
  Etcd(Etcd&&) noexcept;
  Etcd& operator=(Etcd&&) noexcept;
  ~Etcd();

  // Each asks the members in turn until one answers, the one first that has answered last, until
  // `until`. Blame::kUser: etcd refuses, and would again.
  Result<EtcdAnswer> transact(const EtcdTransaction& transaction, Instant until);
  Result<EtcdLeaseGrant> grant(std::chrono::seconds ttl, Instant until);
  // How long it lives from when etcd heard this; nothing: it has ended.
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
