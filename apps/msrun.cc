// msrun: starts a job's processes on this host and keeps them going.
#include <unistd.h>

#include "apps/commands.h"

int main(int argc, char** argv) {
  return holdfast::apps::launch("msrun", argc - 1, argv + 1, environ);
}
