// bench_allreduce: our all-reduce within a host against Gloo's ring and memcpy, in one run.
//
// usage: bench_allreduce [rounds]
// For each number of processes and each size, the four ways take turns within every round; a
// figure is the slowest rank's time per operation, the median of all rounds with their range, and
// a ratio is the median of the rounds' ratios, beside the bar that it has to reach. So a busy
// machine disturbs all of them alike. Sets of processes beyond the cores measure the scheduler too.
#include <fcntl.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/text.h"
#include "collective/group.h"

namespace holdfast {
namespace {

using Clock = std::chrono::steady_clock;
using collective::Group;
using collective::Outcome;

constexpr std::array<int, 5> kProcesses = {1, 2, 3, 4, 8};
constexpr int kMaxProcesses = kProcesses.back();
constexpr int kMaxRounds = 100;
constexpr std::size_t kWays = 4;
enum Way : std::size_t { kRegistered, kStaged, kGloo, kMemcpy };

// Microseconds per operation: [way][round][rank]. In memory that all processes share.
using Times = std::array<std::array<std::array<double, kMaxProcesses>, kMaxRounds>, kWays>;

struct Job {
  std::string directory;
  int processes;
  std::size_t bytes;
  int rounds;
};

std::span<float> as_floats(std::span<std::byte> bytes, std::size_t count) {
  return {reinterpret_cast<float*>(bytes.data()), count};
}

std::unique_ptr<Group> join(const Job& job, int rank) {
  Group::Options options;
  options.directory = job.directory;
  options.generation = 1;
  options.rank = rank;
  options.world_size = job.processes;
  options.registered.bytes = job.bytes;
  for (int k = 0; k < job.processes; ++k) {
    options.registered.files.push_back(cat(job.directory, "/arena-", k));
  }
  auto group = Group::join(options);
  if (!group) {
    std::fprintf(stderr, "bench_allreduce: %s\n", group.error().what.c_str());
    std::_Exit(1);
  }
  return *std::move(group);
}

std::shared_ptr<gloo::rendezvous::Context> connect_gloo(const Job& job, int rank) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(cat(job.directory, "/gloo"));
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, job.processes);
  context->connectFullMesh(store, device);
  return context;
}

void gloo_all_reduce(const std::shared_ptr<gloo::rendezvous::Context>& context,
                     std::span<float> numbers) {
  gloo::AllreduceOptions options(context);
  options.setOutput(numbers.data(), numbers.size());
  options.setReduceFunction(
      [](void* c, const void* a, const void* b, std::size_t n) { gloo::sum<float>(c, a, b, n); });
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  gloo::allreduce(options);
}

double time_of(const std::function<void()>& operation, int times) {
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) operation();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / times;
}

// How often to do it for about 20 ms; rank 0's opinion, so that all do the same.
int agree_on_times(Group& group, const std::function<void()>& operation) {
  (void)time_of(operation, 3);
  auto times = static_cast<std::int32_t>(20'000 / (time_of(operation, 3) + 0.01));
  times = std::clamp(times, 2, 5000);
  const std::span one(&times, 1);
  HF_ASSERT(group.broadcast(std::as_writable_bytes(one), 0) == Outcome::kDone);
  return times;
}

// Each way's operation on its own buffer, which is checked to be a sum before anything is timed.
void run_rank(const Job& job, int rank, Times& times) {
  const std::size_t count = job.bytes / sizeof(float);
  const auto group = join(job, rank);
  const auto context = job.processes > 1 ? connect_gloo(job, rank) : nullptr;
  std::vector<float> staged(count, 1.0F);
  std::vector<float> through_gloo(count, 1.0F);
  std::vector<float> copy(count);
  const std::span<float> registered = as_floats(group->registered(), count);
  std::fill(registered.begin(), registered.end(), 1.0F);
  const auto done = [](Outcome o) { HF_ASSERT(o == Outcome::kDone); };
  const std::array<std::function<void()>, kWays> ways = {
      [&] { done(group->all_reduce(registered)); },
      [&] { done(group->all_reduce(std::span(staged))); },
      [&] {
        if (context) gloo_all_reduce(context, through_gloo);
      },
      [&] {
        std::memcpy(copy.data(), staged.data(), job.bytes);
        asm volatile("" ::: "memory");
      },
  };
  for (const auto& way : ways) way();
  const std::array<std::span<float>, 3> sums = {registered, std::span(staged),
                                                std::span(through_gloo)};
  for (const std::span<float> sum : sums) {
    const float want = context || sum.data() != through_gloo.data() ? float(job.processes) : 1.0F;
    HF_ASSERT(std::count(sum.begin(), sum.end(), want) == std::ptrdiff_t(count));
    std::fill(sum.begin(), sum.end(), 0.0F);  // So that repeated sums stay finite.
  }
  std::array<int, kWays> repeats{};
  for (std::size_t w = 0; w < kWays; ++w) repeats[w] = agree_on_times(*group, ways[w]);
  for (int round = 0; round < job.rounds; ++round) {
    for (std::size_t w = 0; w < kWays; ++w) {
      done(group->barrier());
      times[w][std::size_t(round)][std::size_t(rank)] = time_of(ways[w], repeats[w]);
    }
  }
  done(group->barrier());  // Gloo is torn down when nobody needs it any more.
}

// ---- the table ----------------------------------------------------------------------------------

struct Figures {
  double median;
  double low;
  double high;
};

Figures figures_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples.front(), samples.back()};
}

std::vector<double> slowest_ranks(const Job& job, const Times& times, Way way) {
  std::vector<double> out;
  for (int round = 0; round < job.rounds; ++round) {
    const auto& ranks = times[way][std::size_t(round)];
    out.push_back(*std::max_element(ranks.begin(), ranks.begin() + job.processes));
  }
  return out;
}

std::string cell(const Job& job, const Times& times, Way way) {
  if (way == kGloo && job.processes == 1) return "-";
  const Figures f = figures_of(slowest_ranks(job, times, way));
  char text[64];
  const int digits = f.median < 100 ? 2 : 0;
  std::snprintf(text, sizeof text, "%.*f (%.*f-%.*f)", digits, f.median, digits, f.low, digits,
                f.high);
  return text;
}

double gloo_over(const Job& job, const Times& times, Way way) {
  const std::vector<double> ours = slowest_ranks(job, times, way);
  std::vector<double> ratios = slowest_ranks(job, times, kGloo);
  for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] /= ours[i];
  return figures_of(ratios).median;
}

std::string ratio(const Job& job, const Times& times, Way way, double bar) {
  if (job.processes == 1) return "-";
  const double value = gloo_over(job, times, way);
  char text[64];
  std::snprintf(text, sizeof text, "%.1fx (bar %.0fx%s)", value, bar,
                value >= bar ? "" : ", MISSED");
  return text;
}

void print_row(const Job& job, const Times& times) {
  const bool small = job.bytes < (1U << 20);
  std::printf("| %d | %6zu KB | %s | %s | %s | %s | %s | %s |\n", job.processes, job.bytes / 1024,
              cell(job, times, kRegistered).c_str(), cell(job, times, kStaged).c_str(),
              cell(job, times, kGloo).c_str(), cell(job, times, kMemcpy).c_str(),
              ratio(job, times, kRegistered, small ? 100 : 10).c_str(),
              ratio(job, times, kStaged, 3).c_str());
  std::fflush(stdout);
}

// ---- processes ----------------------------------------------------------------------------------

// As arena/ does it for real arenas; the kernel may say no.
void take_huge_pages(int fd, std::size_t bytes) {
  constexpr int kMadviseCollapse = 25;
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  HF_ASSERT(base != MAP_FAILED);
  std::memset(base, 0, bytes);
  (void)::madvise(base, bytes, kMadviseCollapse);
  ::munmap(base, bytes);
}

void make_arenas(const Job& job) {
  std::filesystem::create_directory(cat(job.directory, "/gloo"));
  for (int k = 0; k < job.processes; ++k) {
    const int fd = ::open(cat(job.directory, "/arena-", k).c_str(), O_CREAT | O_RDWR, 0600);
    HF_ASSERT(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(job.bytes)) == 0);
    take_huge_pages(fd, job.bytes);
    ::close(fd);
  }
}

bool run_job(Job job, Times& times) {
  char name[] = "/dev/shm/holdfast-bench-XXXXXX";
  HF_ASSERT(::mkdtemp(name) != nullptr);
  job.directory = name;
  make_arenas(job);
  for (int rank = 0; rank < job.processes; ++rank) {
    if (::fork() == 0) {
      run_rank(job, rank, times);
      std::_Exit(0);
    }
  }
  bool good = true;
  for (int status = 0; ::wait(&status) > 0;) good &= status == 0;
  std::filesystem::remove_all(job.directory);
  if (good) print_row(job, times);
  return good;
}

int run(int rounds) {
  void* memory =
      ::mmap(nullptr, sizeof(Times), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  HF_ASSERT(memory != MAP_FAILED);
  auto& times = *new (memory) Times;
  std::printf("float32 sum in place; microseconds per operation: median (range) of %d rounds\n\n",
              rounds);
  std::printf(
      "| n | size | registered | staged | Gloo ring | memcpy | Gloo / registered | "
      "Gloo / staged |\n|---|---|---|---|---|---|---|---|\n");
  bool good = true;
  for (const int processes : kProcesses) {
    for (const std::size_t bytes : {4UL << 10, 1UL << 20, 25UL << 20}) {
      good &= run_job({.directory = {}, .processes = processes, .bytes = bytes, .rounds = rounds},
                      times);
    }
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  if (argc > 2 || rounds < 1 || rounds > holdfast::kMaxRounds) {
    std::fprintf(stderr, "usage: bench_allreduce [rounds, 1 to %d]\n", holdfast::kMaxRounds);
    return 2;
  }
  return holdfast::run(rounds);
}
