// Shows that a job's processes find each other and stay together, whatever is killed.
//
//   hello_cluster --rounds N --period-ms P      started by hello_cluster.sh, msrun or holdfast run
//
// Once the group stands it prints its rank, node id, host and pid. In each round it sets its key to
// the round, waits for its neighbour's, passes a barrier, and prints one JSON line: {"rank",
// "size", "round", "generation", "t_ns"}. t_ns is CLOCK_MONOTONIC. Exit code 0: all rounds were
// made; 1: the job failed; 2: the command line is wrong.
#include <holdfast/cluster.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMaxRounds = 1'000'000'000;
constexpr std::uint64_t kMaxPeriodMs = 3'600'000;

struct Options {
  std::uint64_t rounds = 10;
  std::uint64_t period_ms = 100;
};

[[noreturn]] void refuse(const std::string& why) {
  std::fprintf(stderr, "hello_cluster: %s (hello_cluster --rounds N --period-ms P)\n", why.c_str());
  std::exit(2);
}

Options options_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (name != "--rounds" && name != "--period-ms") refuse("there is no option " + name);
    if (i + 1 == argc) refuse(name + " has no value");
    const std::string_view text = argv[i + 1];
    const std::uint64_t most = name == "--rounds" ? kMaxRounds : kMaxPeriodMs;
    const bool digits =
        text.find_first_not_of("0123456789") == std::string_view::npos && !text.empty();
    const std::uint64_t value = digits ? std::strtoull(argv[i + 1], nullptr, 10) : most + 1;
    if (value > most) {
      refuse(name + " is '" + std::string(text) + "'; allowed is a whole number up to " +
             std::to_string(most));
    }
    (name == "--rounds" ? options.rounds : options.period_ms) = value;
  }
  return options;
}

std::string key_of(int rank) {
  return "round of rank " + std::to_string(rank);
}

// Waits until this rank is in the round, which is not lost.
void await(holdfast::Cluster& cluster, int rank, std::uint64_t round) {
  holdfast::Cluster::Value read;
  do {
    read = cluster.wait_newer(key_of(rank), read.version);
  } while (read.value != std::to_string(round));
}

// `introduced_in`: the generation in which this process last asked who is there.
void make_round(holdfast::Cluster& cluster, std::uint64_t round, std::uint64_t& introduced_in) {
  const int rank = cluster.rank();
  // All ranks ask again when one was replaced: the successor has to, and they do the same things.
  if (introduced_in != cluster.generation()) {
    const auto me = cluster.hosts()[static_cast<std::size_t>(rank)];
    if (introduced_in == 0) {
      std::printf("rank %d of %d: node id %s, host %s, pid %" PRId64 "\n", rank, cluster.size(),
                  me.node_id.c_str(), me.host.c_str(), me.pid);
    }
    introduced_in = cluster.generation();
  }
  const int neighbour = (rank + 1) % cluster.size();
  cluster.set(key_of(rank), std::to_string(round));
  await(cluster, neighbour, round);
  cluster.barrier();
}

void run(const Options& options) {
  holdfast::Cluster cluster;
  std::uint64_t introduced_in = 0;
  while (cluster.rounds_made() < options.rounds) {
    const auto next = Clock::now() + std::chrono::milliseconds(options.period_ms);
    const std::uint64_t round = cluster.rounds_made() + 1;
    const bool made = cluster.make_round([&] { make_round(cluster, round, introduced_in); });
    if (!made) continue;
    const std::int64_t now = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
    std::printf("{\"rank\": %d, \"size\": %d, \"round\": %" PRIu64 ", \"generation\": %" PRIu64
                ", \"t_ns\": %" PRId64 "}\n",
                cluster.rank(), cluster.size(), round, cluster.generation(), now);
    std::fflush(stdout);
    std::this_thread::sleep_until(next);
  }
  cluster.leave();
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = options_of(argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hello_cluster: %s\n", error.what());
    return 1;
  }
  return 0;
}
