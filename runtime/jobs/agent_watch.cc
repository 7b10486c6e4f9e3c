// Watches by number and start time, which name one process for good within a PID namespace.
#include "runtime/jobs/agent_watch.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>

#include "base/text.h"

namespace holdfast::runtime {

std::string AgentWatch::words_for_this_process() {
  const auto start_time = os::start_time(::getpid());
  const auto place = os::pid_namespace();
  return start_time && place ? cat(::getpid(), ':', *start_time, ':', *place) : std::string();
}

AgentWatch::AgentWatch(const config::Settings& settings) {
  const auto agent = config::process_name(settings.agent);
  if (!agent || os::pid_namespace() != agent->pid_namespace) return;
  agent_ = agent->pid;
  start_time_ = agent->start_time;
}

void AgentWatch::let_it_look() const {
  if (agent_ > 0) (void)::prctl(PR_SET_PTRACER, agent_, 0, 0, 0);
}

void AgentWatch::follow() const {
  std::fprintf(stderr, "holdfast: the agent of this job (process %d) is gone, so this one ends\n",
               agent_);
  ::kill(0, SIGKILL);
  ::_exit(1);
}

}  // namespace holdfast::runtime
