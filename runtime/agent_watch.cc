// Follows an agent that is gone.
#include "runtime/agent_watch.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>

namespace holdfast::runtime {

void AgentWatch::follow() const {
  std::fprintf(stderr, "holdfast: the agent of this job (process %d) is gone, so this one ends\n",
               agent_);
  ::kill(0, SIGKILL);
  ::_exit(1);
}

}  // namespace holdfast::runtime
