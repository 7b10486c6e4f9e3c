// Chooses the job that a `holdfast` command means, and asks its scheduler.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "config/settings.h"
#include "runtime/jobs/job_files.h"
#include "wire/messages.h"

namespace holdfast::apps {

// The running job that a command means: the one named `name`; or, if `name` is empty, the only one
// of this user on this host.
struct ChosenJob {
  std::optional<runtime::FoundJob> job;  // Its scheduler is in reach, as far as this host knows.
  std::optional<runtime::FoundJob>
      dead;                        // The one that is meant has left files, and nothing lives.
  std::string why;                 // If there is no `job`: why,
  int code = 0;                    // and the exit code: 1; 2 if the user has to name a job.
  std::vector<std::string> names;  // The jobs to choose from.
};
[[nodiscard]] ChosenJob choose_job(const std::string& name);

// The settings of a command that speaks with this job: those of the environment, and the job's name
// and token file.
Result<config::Settings> settings_of(const runtime::FoundJob& job);

// Sends `question` to the job's scheduler and returns its first answer. Proves that this user owns
// the job by the job's token, which no other user can read. Requires: the job has a scheduler, or
// an agent of this host that knows where the scheduler runs.
Result<wire::Message> ask_scheduler(const runtime::FoundJob& job, const wire::Message& question,
                                    Duration timeout);

// What the scheduler of a job has answered, or why there is no answer.
template <class Answer>
struct Asked {
  ChosenJob chosen;
  std::optional<Answer> answer;
  std::string why;  // If there is no `answer`: why,
  int code = 0;     // and the exit code, as in ChosenJob.
};

// Asks the scheduler of the job that `name` means, as choose_job() has it.
template <class Answer>
[[nodiscard]] Asked<Answer> ask_job(const std::string& name, const wire::Message& question,
                                    Duration timeout = std::chrono::seconds(5)) {
  Asked<Answer> asked{.chosen = choose_job(name), .answer = {}, .why = {}};
  asked.why = asked.chosen.why;
  asked.code = asked.chosen.code;
  if (!asked.chosen.job) return asked;
  auto said = ask_scheduler(*asked.chosen.job, question, timeout);
  auto* answer = said ? std::get_if<Answer>(&*said) : nullptr;
  if (answer != nullptr) {
    asked.answer = std::move(*answer);
  } else {
    asked.why = said ? "the scheduler does not know this command" : said.error().what;
    asked.code = 1;
  }
  return asked;
}

// Prints "COMMAND: TEXT" to standard error. Returns `code`.
int complain(const std::string& text, int code, const char* command = "holdfast");

// Prints what the scheduler says to an order: it does so if the reason's kind is `done`. Returns
// the exit code.
int tell(const wire::Reason& reason, wire::Reason::Kind done);
// ask_job() and tell() for an order. Its answer has a reason.
template <class Answer>
int give_order(const std::string& job, const wire::Message& order, wire::Reason::Kind done,
               Duration timeout = std::chrono::seconds(5)) {
  const auto asked = ask_job<Answer>(job, order, timeout);
  return asked.answer ? tell(asked.answer->reason, done) : complain(asked.why, asked.code);
}

}  // namespace holdfast::apps
