#include "os/heeded.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace holdfast::os {
namespace {

std::atomic<pid_t> heeded_sender = 0;
std::atomic<pid_t> heeding_process = 0;

// The signal is blocked until this returns. Then the default action follows.
void look_at_sender(int number, siginfo_t* info, void*) {
  if (::getpid() == heeding_process && info->si_pid != heeded_sender) return;
  ::signal(number, SIG_DFL);
  (void)::raise(number);
}

}  // namespace

void heed_only(pid_t sender, std::initializer_list<int> signals) {
  heeded_sender = sender;
  heeding_process = ::getpid();
  for (const int number : signals) {
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0) continue;
    if (now.sa_handler != SIG_DFL) continue;
    struct sigaction ours {};
    ours.sa_sigaction = look_at_sender;
    ours.sa_flags = SA_SIGINFO | SA_RESTART;
    (void)::sigaction(number, &ours, nullptr);
  }
}

}  // namespace holdfast::os
