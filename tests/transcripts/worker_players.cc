// The trainer machine of a worker. "group G V" sets it up as one of a standing group: it trains in
// generation G from version V.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <sstream>

#include "base/text.h"
#include "core/trainer/machine.h"
#include "sim/words.h"
#include "tests/transcripts/players.h"

namespace holdfast::transcripts {
namespace {

using wire::Reason;

// "finish", "begin", "receive-from-2"; anything else: keep.
wire::Order order_in(std::istream& in) {
  std::string word;
  in >> word;
  const std::string from = "receive-from-";
  if (word == "finish") return {.act = wire::Act::kFinish, .source = {}};
  if (word == "begin") return {.act = wire::Act::kBegin, .source = {}};
  if (!word.starts_with(from)) return {};
  return {.act = wire::Act::kReceive,
          .source = {.holder = std::stoi(word.substr(from.size())), .host = {}, .endpoint = {}}};
}

// This rank's part: "stop G", "repair G V ORDER", "run G V".
wire::Assignment part_in(const std::string& verb, std::istream& in) {
  wire::Assignment part{.rank = 0, .world_size = 2, .run_id = 7};
  in >> part.generation;
  if (verb == "stop") return part;
  part.version = version_in(in);
  if (verb == "repair") {
    part.stage = wire::Stage::kRepairing;
    part.order = order_in(in);
    return part;
  }
  EXPECT_EQ(verb, "run");
  part.stage = wire::Stage::kRunning;
  return part;
}

class TrainerPlayer : public Player {
 public:
  std::vector<std::string> play(const std::string& line) override {
    std::istringstream in(line);
    std::string verb;
    in >> verb;
    if (verb == "time") {
      std::int64_t seconds = 0;
      in >> seconds;
      now_ = std::chrono::seconds(seconds);
      return step(trainer::TimePassed{});
    }
    if (verb == "group") return group(in);
    const auto event = program(verb, in);
    return step(event ? *event : control(verb, in));
  }

  std::string state() const override {
    const Holding& holding = machine_.holding();
    return cat(name(machine_.state()), ", holds ", version_text(holding.version), " staged ",
               version_text(holding.staged), ", generation ", machine_.generation(),
               ", stopped for ", machine_.stopped_for());
  }

 private:
  static trainer::Outcome outcome_in(std::istream& in) {
    std::string word;
    in >> word;
    if (word == "done") return trainer::Outcome::kDone;
    return word == "refused" ? trainer::Outcome::kRefused : trainer::Outcome::kStopped;
  }

  // What the training thread brings.
  static std::optional<trainer::Event> program(const std::string& verb, std::istream& in) {
    if (verb == "begins-a-step") return trainer::StepBegun{};
    if (verb == "begins-a-step-in-an-ended-group") return trainer::StepBegun{true};
    if (verb == "ends-the-step") return trainer::StepEnded{};
    if (verb == "ends-the-training") return trainer::EndCalled{};
    if (verb == "formed") return trainer::Formed{};
    if (verb == "not-formed") return trainer::NotFormed{false, "a rank did not come"};
    if (verb == "left") return trainer::LeftGroup{};
    if (verb == "sums") return trainer::SumsDone{outcome_in(in), "the ranks differ"};
    if (verb == "staged") return trainer::Staged{};
    if (verb == "arrived") return trainer::Arrived{outcome_in(in), "the ranks differ"};
    if (verb == "updated") return trainer::Updated{};
    if (verb != "joins" && verb != "repaired") return std::nullopt;
    Holding holding{version_in(in), kNoVersion};
    holding.staged = version_in(in);
    if (verb == "joins") return trainer::JoinCalled{holding};
    return trainer::Repaired{holding, ""};
  }

  // What the control thread brings.
  static trainer::Event control(const std::string& verb, std::istream& in) {
    if (verb == "group-stopped") return trainer::GroupStopped{true};
    if (verb == "group-stopped-in-a-sum") return trainer::GroupStopped{false};
    if (verb == "sums-idle") return trainer::SumsIdle{};
    if (verb == "released") return trainer::Released{};
    if (verb == "job-over")
      return trainer::JobOver{false, {.kind = Reason::Kind::kInterrupted, .count = 2}};
    const bool is_first = verb == "reconnected:";
    std::string order = verb;
    if (is_first) in >> order;
    return Assigned{part_in(order, in), is_first, std::make_shared<AddressBook>()};
  }

  std::vector<std::string> group(std::istream& in) {
    std::string generation;
    in >> generation;
    const Version version = version_in(in);
    (void)step(trainer::JoinCalled{{version, version}});
    (void)play(cat("run ", generation, " ", version));
    (void)step(trainer::StepBegun{});
    (void)step(trainer::Formed{});
    return {};
  }

  std::vector<std::string> step(const trainer::Event& event) {
    std::vector<std::string> all;
    for (const auto& action : machine_.step(now_, event)) all.push_back(sim::to_words(action));
    return all;
  }

  trainer::Machine machine_{{.replacement_timeout = std::chrono::seconds(60),
                             .forming_patience = std::chrono::seconds(20),
                             .scheduler_timeout = std::chrono::seconds(30),
                             .progress_interval = std::chrono::milliseconds(250)}};
  Instant now_{};
};

}  // namespace

std::unique_ptr<Player> trainer_player() {
  return std::make_unique<TrainerPlayer>();
}

}  // namespace holdfast::transcripts
