// holdfast-server: a parameter server, as an agent starts it (msrun --server_num).
#include <unistd.h>

#include <cstdio>

#include "config/settings.h"
#include "runtime/worker/worker.h"

int main() {
  const auto settings = holdfast::config::from_environment(::environ);
  const auto worker = settings ? holdfast::runtime::Worker::start(*settings) : settings.error();
  // It serves, and ends the process, once it has its place.
  const auto identity = worker ? (*worker)->identity() : worker.error();
  std::fprintf(stderr, "holdfast: %s\n",
               identity ? "this process has a worker's place, and is a parameter server: "
                          "MS_SERVER_NUM has to be the same in all processes of the job"
                        : identity.error().what.c_str());
  return 1;
}
