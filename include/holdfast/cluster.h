// Cluster: the processes of a job for a program that does not train: who they are, key-values, a
// barrier, an exchange of bytes. It needs libholdfast.so (holdfast::c) and no framework.
//
//   holdfast::Cluster cluster;
//   while (cluster.rounds_made() < 10) {
//     const bool made = cluster.make_round([&] {
//       cluster.put("greeting/" + std::to_string(cluster.rank()), "hello");
//       cluster.barrier();
//     });
//     if (!made) continue;  // A process was lost. The same round is made again.
//   }
//   cluster.leave();
//
// A round is to Holdfast what a step is to a trainer. All ranks make it, or none does. Any process,
// and the scheduler, may be killed in any of them. A process that replaces another runs the same
// program and goes on with the round that the others are in.
#pragma once

#include <holdfast/c.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/failure.h"  // IWYU pragma: export

namespace holdfast {

// One thread uses it. Everything that fails throws Failure.
class Cluster {
 public:
  struct Host {
    std::string node_id;
    std::string host;
    std::int64_t pid = 0;
  };

  // Joins the job that the environment names, and waits until all ranks have joined. Make it once,
  // in the main thread. In the scheduler's process it serves the job and then exits the process.
  Cluster();
  // Without leave() before, this rank counts as failed once its process ends.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  [[nodiscard]] int rank() const { return place_.rank; }
  [[nodiscard]] int size() const { return place_.world_size; }
  [[nodiscard]] int local_rank() const { return local_rank_; }  // Among the ranks of this host.
  [[nodiscard]] std::uint64_t generation() const { return hf_generation(session_); }
  [[nodiscard]] std::uint64_t rounds_made() const { return hf_version(session_); }

  // Key-values of the job (c.h, hf_kv_put): the first value of a key stays until the job's end. So
  // a round that is made again puts and reads what it did before.
  void put(const std::string& key, const std::string& value);
  // Waits for a value, `limit` at most (0: only looks; negative: no limit). nullopt: there is none.
  [[nodiscard]] std::optional<std::string> get(const std::string& key,
                                               std::chrono::milliseconds limit = {});

  // Values that change. Each value of a key has a version: 1, 2, ... A round that is made again
  // sets its values again, so put() what must be equal then.
  struct Value {
    std::string value;
    std::uint64_t version = 0;
  };
  // Like get(), but waits for a version newer than `newer_than`.
  [[nodiscard]] std::optional<Value> read(const std::string& key,
                                          std::chrono::milliseconds limit = {},
                                          std::uint64_t newer_than = 0);
  // Returns the version of this value.
  std::uint64_t set(const std::string& key, const std::string& value);
  // Sets the value only if the key is at the expected version (0: it has no value). nullopt: it is
  // at another one.
  [[nodiscard]] std::optional<std::uint64_t> compare_and_set(const std::string& key,
                                                             const std::string& value,
                                                             std::uint64_t expected);

  // Runs `body` as the next round on all ranks. Returns whether the round was made. False: a
  // process was lost; call it again to make the same round. Exceptions of `body` pass through.
  template <class Body>
  [[nodiscard]] bool make_round(Body body);

  // The next three are called within a round, in the same order on all ranks. If a process is lost,
  // they leave `body` by an exception that make_round() catches.
  void barrier();
  // `mine` of every rank, in rank order. Its size may differ between ranks.
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& mine);
  // The processes of this round, by rank. They may change with generation(): a program that
  // remembers them calls this again in the first round of each generation, on all ranks.
  [[nodiscard]] std::vector<Host> hosts();
  // Within a round: waits until the key has a value, or a version newer than `newer_than`. If a
  // process is lost, they leave `body` as the three above do.
  [[nodiscard]] std::string wait_for(const std::string& key);
  [[nodiscard]] Value wait_newer(const std::string& key, std::uint64_t newer_than);

  // Call it on all ranks after the last round: this rank's part of the job has ended well.
  void leave() { check(hf_end(session_)); }

 private:
  struct RoundLost {};  // Thrown to leave `body` when a process is lost.

  static void check(hf_status status) {
    if (status != HF_OK) throw Failure(hf_last_error());
  }
  static void check_exchange(hf_status status) {
    if (status == HF_ABORTED) throw RoundLost();
    check(status);
  }

  hf_worker* worker_ = nullptr;
  hf_session* session_ = nullptr;
  hf_place place_{};
  std::int32_t local_rank_ = 0;
};

inline Cluster::Cluster() {
  check(hf_start(&worker_));
  try {
    check(hf_identity(worker_, &place_));
    check(hf_local_rank(worker_, &local_rank_));
    hf_layout layout{};
    layout.private_bytes = 1;  // The state is the number of rounds alone.
    check(hf_open(worker_, &layout, &session_));
    check(hf_join(session_, nullptr));
  } catch (...) {
    if (session_ != nullptr) hf_close(session_);
    hf_stop(worker_);
    throw;
  }
}

inline Cluster::~Cluster() {
  hf_close(session_);
  hf_stop(worker_);
}

inline void Cluster::put(const std::string& key, const std::string& value) {
  check(hf_kv_put(worker_, key.c_str(), value.data(), value.size()));
}

inline std::optional<std::string> Cluster::get(const std::string& key,
                                               std::chrono::milliseconds limit) {
  const char* const name = key.c_str();
  const void* value = nullptr;
  std::uint64_t bytes = 0;
  const hf_status status = hf_kv_get(worker_, &name, 1, limit.count(), nullptr, &value, &bytes);
  if (status == HF_PENDING) return std::nullopt;
  check(status);
  return std::string(static_cast<const char*>(value), bytes);
}

inline std::optional<Cluster::Value> Cluster::read(const std::string& key,
                                                   std::chrono::milliseconds limit,
                                                   std::uint64_t newer_than) {
  const void* value = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t version = 0;
  const hf_status status =
      hf_kv_read(worker_, key.c_str(), newer_than, limit.count(), &value, &bytes, &version);
  if (status == HF_PENDING) return std::nullopt;
  check(status);
  return Value{std::string(static_cast<const char*>(value), bytes), version};
}

inline std::uint64_t Cluster::set(const std::string& key, const std::string& value) {
  const auto version = compare_and_set(key, value, HF_ANY_VERSION);
  if (!version) throw Failure("the value of '" + key + "' was not set");
  return *version;
}

inline std::optional<std::uint64_t> Cluster::compare_and_set(const std::string& key,
                                                             const std::string& value,
                                                             std::uint64_t expected) {
  int is_set = 0;
  std::uint64_t version = 0;
  check(hf_kv_set(worker_, key.c_str(), value.data(), value.size(), expected, &is_set, &version));
  return is_set != 0 ? std::optional(version) : std::nullopt;
}

template <class Body>
bool Cluster::make_round(Body body) {
  check(hf_begin_step(session_, nullptr));
  try {
    body();
  } catch (const RoundLost&) {
    return false;  // The next hf_begin_step() recovers and gives this round up.
  }
  const hf_step step{};
  int is_void = 0;
  check(hf_end_step(session_, &step, &is_void));
  return is_void == 0;
}

inline void Cluster::barrier() {
  check_exchange(hf_barrier(hf_world(session_), nullptr));
}

inline std::vector<std::string> Cluster::all_gather(const std::string& mine) {
  hf_group* const world = hf_world(session_);
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<std::uint64_t> sizes(ranks);
  const std::uint64_t my_size = mine.size();
  check_exchange(hf_all_gather(world, &my_size, sizeof(my_size), sizes.data(), nullptr));
  std::uint64_t most = 0;
  for (const std::uint64_t one : sizes) most = one > most ? one : most;
  std::vector<std::string> all(ranks);
  if (most == 0) return all;
  std::string padded = mine;
  padded.resize(most);
  std::string gathered(most * ranks, '\0');
  check_exchange(hf_all_gather(world, padded.data(), most, gathered.data(), nullptr));
  for (std::size_t i = 0; i < ranks; ++i) all[i] = gathered.substr(i * most, sizes[i]);
  return all;
}

inline std::vector<Cluster::Host> Cluster::hosts() {
  std::vector<hf_host> found(static_cast<std::size_t>(size()));
  check_exchange(hf_hosts(worker_, hf_world(session_), found.data()));
  std::vector<Host> all;
  for (const hf_host& one : found) all.push_back({one.node_id, one.host, one.pid});
  return all;
}

inline std::string Cluster::wait_for(const std::string& key) {
  return wait_newer(key, 0).value;
}

inline Cluster::Value Cluster::wait_newer(const std::string& key, std::uint64_t newer_than) {
  const void* value = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t version = 0;
  check_exchange(hf_kv_wait(worker_, session_, key.c_str(), newer_than, &value, &bytes, &version));
  return {std::string(static_cast<const char*>(value), bytes), version};
}

}  // namespace holdfast
