// `holdfast stop` and `holdfast snapshot now`.
#include <cstdio>

#include "apps/ask.h"
#include "apps/commands.h"
#include "base/text.h"

namespace holdfast::apps {
namespace {

using wire::SnapshotWord;

// Names the snapshot that was made, if one was. Else returns why not; empty: the job makes none.
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
  if (!why.empty()) return complain(cat("the job goes on: ", why), 1);
  const bool makes_none = asked.answer->word == SnapshotWord::kStop;
  std::printf("the job ends%s\n", makes_none ? ", without a snapshot: it makes none" : "");
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
