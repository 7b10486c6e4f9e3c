#include "apps/clean.h"

#include <cstdio>

#include "base/text.h"
#include "runtime/job_files.h"

namespace holdfast::apps {
namespace {

std::string why_alive(const runtime::FoundJob& job) {
  if (job.agent_alive) return "its agent runs";
  if (job.scheduler_alive) return "its scheduler runs";
  if (job.users.empty()) return "it may be starting just now";
  return cat("process ", job.users.front(), " uses its files");
}

}  // namespace

int clean(bool dry_run) {
  int code = 0;
  bool any = false;
  for (const auto& job : runtime::jobs_on_this_host()) {
    any = true;
    if (job.alive()) {
      std::printf("job %s is left alone: %s\n", job.name.c_str(), why_alive(job).c_str());
      continue;
    }
    if (dry_run) {
      std::printf("would remove %s\n", job.directory.c_str());
      continue;
    }
    const auto removed = runtime::remove_job_files(job.directory);
    if (removed && *removed) {
      std::printf("removed %s\n", job.directory.c_str());
    } else if (!removed) {
      std::fprintf(stderr, "holdfast: %s\n", removed.error().what.c_str());
      code = 1;
    }
  }
  if (!any) std::printf("nothing to clean\n");
  return code;
}

}  // namespace holdfast::apps
