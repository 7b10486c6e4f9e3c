// An agent's machine. Processes are numbers, in the order in which they are spawned.
#include <gtest/gtest.h>

#include <optional>
#include <sstream>

#include "base/text.h"
#include "core/agent/machine.h"
#include "sim/words.h"
#include "tests/transcripts/players.h"

namespace holdfast::transcripts {
namespace {

using wire::Ending;
using wire::Reason;

class AgentPlayer : public Player {
 public:
  std::vector<std::string> play(const std::string& line) override {
    std::istringstream in(line);
    std::string verb;
    in >> verb;
    if (verb == "start") return start(in);
    if (verb == "group") {
      (void)start(in);
      (void)step(agent::LinkUp{});
      (void)step(agent::Received{wire::JobProgress{1, 1, 0, 0}});
      return {};
    }
    if (verb == "link-up") return step(agent::LinkUp{});
    if (verb == "link-down") return step(agent::LinkDown{});
    if (verb == "grace-over") return step(agent::GraceOver{});
    if (verb == "interrupted") return step(agent::Interrupted{2});
    if (verb == "job-ended-well") return step(agent::Received{wire::JobEnded{true, {}}});
    if (verb == "job-failed") {
      return step(agent::Received{
          wire::JobEnded{false, {.kind = Reason::Kind::kProgram, .rank = 0, .detail = "NaN"}}});
    }
    std::uint64_t number = 0;
    in >> number;
    if (verb == "pause-over") return step(agent::PauseOver{number});
    if (verb == "looks") return step(agent::Looked{{number}, true});
    if (verb == "dying") return step(agent::Died{number, {}, 5});
    if (verb == "not-spawned") return step(agent::SpawnFailed{number, "no memory"});
    if (verb == "progress") {
      Version version = version_in(in);
      return step(agent::Received{wire::JobProgress{number, version, 0, 0}});
    }
    EXPECT_EQ(verb, "died") << line;
    std::int32_t code = 0;
    in >> code;
    const bool signalled = code > 128;
    return step(agent::Died{number,
                            {signalled ? Ending::Kind::kSignalled : Ending::Kind::kExited,
                             signalled ? code - 128 : code},
                            5});
  }

  std::string state() const override {
    std::string text = cat(name(machine_->state()), ",");
    for (const auto& place : machine_->places()) {
      text += cat(" ", place.node_id, "#", place.attempt, " ",
                  place.process != 0 ? cat("process ", place.process)
                  : place.done       ? "done"
                                     : "empty");
    }
    return text;
  }

 private:
  // workers spares [max_restarts]
  std::vector<std::string> start(std::istream& in) {
    agent::Options options{.job = "job", .agent_id = "agent", .host = "host", .seed = 1};
    options.runs_scheduler = true;
    in >> options.world_size >> options.spares;
    if (!(in >> options.max_restarts)) options.max_restarts = 3;
    for (Rank rank = 0; rank < options.world_size; ++rank)
      options.workers.push_back(cat("w", rank));
    machine_.emplace(options);
    return step(agent::Started{});
  }

  std::vector<std::string> step(const agent::Event& event) {
    std::vector<std::string> all;
    for (const auto& action : machine_->step(event)) all.push_back(sim::to_words(action));
    return all;
  }

  std::optional<agent::Machine> machine_;
};

}  // namespace

std::unique_ptr<Player> agent_player() {
  return std::make_unique<AgentPlayer>();
}

}  // namespace holdfast::transcripts
