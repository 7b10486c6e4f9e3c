// bench_detect: how long after SIGKILL a death is known, by lifeline and by pidfd, for a process of
// no memory and for one of several GB. Prints one table: medians and ranges in milliseconds.
//
//   bench_detect [rounds, default 15] [GB of the large process, default 4]
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "os/lifeline.h"

namespace {

double now_ms() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

// The victim: holds the lifeline, touches its memory, says so, and waits to be killed.
[[noreturn]] void victim(const std::string& path, std::size_t bytes, int ready) {
  const auto lifeline = holdfast::os::Lifeline::hold(path);
  if (!lifeline) _exit(1);
  if (bytes > 0) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) _exit(2);
    for (std::size_t i = 0; i < bytes; i += 4096) static_cast<volatile char*>(memory)[i] = 1;
  }
  if (write(ready, "r", 1) != 1) _exit(3);
  for (;;) pause();
}

struct Times {
  std::vector<double> lifeline;
  std::vector<double> pidfd;
};

bool measure(const std::string& path, std::size_t bytes, Times& times) {
  if (!holdfast::os::prepare_lifeline(path)) return false;
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) return false;
  const pid_t child = fork();
  if (child == 0) victim(path, bytes, pipe_fds[1]);
  char byte = 0;
  const bool ready = read(pipe_fds[0], &byte, 1) == 1;
  close(pipe_fds[0]);
  close(pipe_fds[1]);
  if (!ready) return false;
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  std::atomic<double> by_lifeline = 0;
  std::atomic<double> by_pidfd = 0;
  std::atomic<bool> cancel = false;
  std::thread a([&] {
    if (holdfast::os::wait_for_death(path, cancel)) by_lifeline = now_ms();
  });
  std::thread b([&] {
    pollfd wait{pidfd, POLLIN, 0};
    poll(&wait, 1, -1);
    by_pidfd = now_ms();
  });
  timespec settle{0, 20'000'000};  // The watchers are to be asleep in the kernel: that is the case.
  nanosleep(&settle, nullptr);
  const double killed = now_ms();
  kill(child, SIGKILL);
  a.join();
  b.join();
  waitpid(child, nullptr, 0);
  close(pidfd);
  times.lifeline.push_back(by_lifeline - killed);
  times.pidfd.push_back(by_pidfd - killed);
  return true;
}

void print(const char* size, const char* by, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::printf("%-10s %-10s %10.3f %10.3f %10.3f\n", size, by, values[values.size() / 2],
              values.front(), values.back());
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const std::size_t large = (argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 4) << 30;
  const std::string path = "/dev/shm/holdfast-bench-detect-" + std::to_string(getpid());
  Times small_times;
  Times large_times;
  for (int i = 0; i < rounds; ++i) {  // Interleaved, so that a busy moment meets both.
    if (!measure(path, 0, small_times) || !measure(path, large, large_times)) {
      std::fprintf(stderr, "bench_detect: the victim could not be started (memory?)\n");
      unlink(path.c_str());
      return 1;
    }
  }
  unlink(path.c_str());
  const std::string large_name = std::to_string(large >> 30) + " GB";
  std::printf("SIGKILL to known, ms, %d rounds\n%-10s %-10s %10s %10s %10s\n", rounds, "memory",
              "by", "median", "min", "max");
  print("none", "lifeline", small_times.lifeline);
  print("none", "pidfd", small_times.pidfd);
  print(large_name.c_str(), "lifeline", large_times.lifeline);
  print(large_name.c_str(), "pidfd", large_times.pidfd);
  return 0;
}
