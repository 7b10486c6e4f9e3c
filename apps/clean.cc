// `holdfast clean`.
#include "apps/commands.h"

#include <cstdio>

#include "base/text.h"
#include "runtime/jobs/job_files.h"

namespace holdfast::apps {
namespace {

std::string why_alive(const runtime::FoundJob& job) {
  if (job.agent_alive) return "its agent runs";
  if (job.scheduler_alive) return "its scheduler runs";
  if (job.solo_alive) return "its process runs";
  if (job.users.empty()) return "it may be starting just now";
  return cat("process ", job.users.front(), " uses its files");
}

// Ends the processes that the job's dead agent has left behind. Returns whether none is left.
bool end_orphans(const runtime::FoundJob& job, bool dry_run) {
  for (const pid_t pid : job.orphans) {
    std::printf("%s process %d, which the dead agent of job %s left behind\n",
                dry_run ? "would end" : "ending", pid, job.name.c_str());
  }
  if (dry_run) return true;
  const auto left = runtime::end_orphans(job);
  for (const pid_t pid : left) {
    std::fprintf(stderr, "holdfast: process %d of job %s does not end: try again later\n", pid,
                 job.name.c_str());
  }
  return left.empty();
}

}  // namespace

int clean(bool dry_run) {
  int code = 0;
  const auto found = runtime::jobs_on_this_host();
  for (const auto& why : found.left_alone) {
    std::fprintf(stderr, "holdfast: %s\n", why.c_str());
    code = 1;
  }
  for (const auto& job : found.jobs) {
    if (job.alive()) {
      std::printf("job %s is left alone: %s\n", job.name.c_str(), why_alive(job).c_str());
      continue;
    }
    if (!end_orphans(job, dry_run)) {
      code = 1;
      continue;
    }
    if (dry_run) {
      std::printf("would remove %s\n", job.directory.c_str());
      continue;
    }
    const auto removed = runtime::remove_if_still_dead(job);
    if (!removed) {
      std::fprintf(stderr, "holdfast: %s\n", removed.error().what.c_str());
      code = 1;
    } else if (*removed) {
      std::printf("removed %s\n", job.directory.c_str());
    } else {
      std::printf("job %s is left alone: it has begun just now\n", job.name.c_str());
    }
  }
  if (found.jobs.empty() && code == 0) std::printf("nothing to clean\n");
  return code;
}

}  // namespace holdfast::apps
