// `holdfast stop` and `holdfast snapshot now`.
#include <cstdio>

#include "apps/ask.h"
#include "apps/commands.h"
#include "base/text.h"

namespace holdfast::apps {
namespace {

using wire::SnapshotWord;

// Why no snapshot was made; empty: it was, and is named on standard output.
std::string print_made(const wire::Snapshot& answer) {
  if (answer.word != SnapshotWord::kNamed) return answer.why;
  std::printf("the snapshot of step %s (%s) is on the disk\n", cat(answer.version).c_str(),
              answer.name.c_str());
  return {};
}

}  // namespace

int stop(const std::string& job, std::int64_t after_step, int timeout_s) {
  const wire::Snapshot order{.word = SnapshotWord::kStop,
                             .version = static_cast<Version>(after_step)};
  const auto asked = ask_job<wire::Snapshot>(job, order, std::chrono::seconds(timeout_s));
  if (!asked.answer) return complain(asked.why, asked.code);
  const std::string why = print_made(*asked.answer);
  // The training may be over, or there is nothing to wait for without snapshots.
  if (asked.answer->word == SnapshotWord::kMissed) return complain(why, 1);
  std::printf("the job ends%s\n", why.empty() ? "" : cat(" without a new snapshot: ", why).c_str());
  return 0;
}

int snapshot_now(const std::string& job, int timeout_s) {
  const wire::Snapshot order{.word = SnapshotWord::kAsk};
  const auto asked = ask_job<wire::Snapshot>(job, order, std::chrono::seconds(timeout_s));
  if (!asked.answer) return complain(asked.why, asked.code);
  const std::string why = print_made(*asked.answer);
  return why.empty() ? 0 : complain(cat("no snapshot was made: ", why), 1);
}

}  // namespace holdfast::apps
