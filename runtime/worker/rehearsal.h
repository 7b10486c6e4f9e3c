// Rehearsal: this process makes one step of a rank again, from what the rank recorded of it
// (recording.h), and says whether all was equal. It is no member of the job: nobody hears of it but
// the agent, which started it and reads its verdict.
//
// A verdict ends the process at once: no more of the program is run. If the step was not equal, the
// verdict of the first process is "again": what it noted stays in the folder, and the agent's next
// process rehearses the same step.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"
#include "collective/tape.h"
#include "core/understudy/machine.h"
#include "runtime/worker/recording.h"

namespace holdfast::runtime {

class Rehearsal final : public collective::Tape {
 public:
  // `goes_on`: a former process has rehearsed the step, and said "again". Errors: the rank shows no
  // steps.
  static Result<std::shared_ptr<Rehearsal>> begin(const std::string& job_folder, Rank rank,
                                                  bool goes_on, std::function<void()> see_agent);

  // The rank's identity, but with the folder of the rehearsal.
  [[nodiscard]] const Identity& identity() const { return identity_; }
  // The file that holds what the rank held before the step.
  [[nodiscard]] std::string state() const { return recorded_state(identity_.directory); }

  // Asks the rank for a step, and waits for it. Returns what the trainer machine is told then.
  [[nodiscard]] understudy::Machine::Assignments await_step();
  [[nodiscard]] understudy::Machine::Assignments hear(const wire::Message& said);
  // The step begins, perhaps again.
  void begin_step();
  void note(std::string_view name, std::uint64_t digest);
  void compare(bool on) { compares_ = on; }
  // The step has come to its end.
  [[noreturn]] void arrive();

  void record(const std::string& group, const collective::Exchange& exchange) override;
  collective::Outcome play(const std::string& group, const collective::Exchange& exchange) override;

  [[noreturn]] void skip(const std::string& why);
  // The program goes on otherwise than the rank did, so that the step can not be made to its end.
  [[noreturn]] void differ(const std::string& what);  // `what`: a sentence's predicate: "it ..."

 private:
  Rehearsal(SamplePage page, Identity identity, std::optional<understudy::Account> former,
            std::function<void()> see_agent)
      : page_(std::move(page)),
        identity_(std::move(identity)),
        goes_on_(former.has_value()),
        see_agent_(std::move(see_agent)),
        machine_({identity_.rank, identity_.world_size, identity_.run_id}, std::move(former)) {}
  // The account is whole.
  [[noreturn]] void conclude();
  [[noreturn]] void end(const std::string& verdict, const std::string& what);

  SamplePage page_;
  const Identity identity_;
  const bool goes_on_;                     // With the step that a former process has rehearsed.
  const std::function<void()> see_agent_;  // Ends this process with its agent.
  std::atomic<bool> compares_ = true;
  std::mutex mutex_;  // Of all that follows: groups have threads of their own.
  understudy::Machine machine_;
  Recording recording_;
  bool is_in_step_ = false;
  understudy::Account own_;  // Of the step under way.
};

}  // namespace holdfast::runtime
