// Replays the transcripts beside it: lines that begin with ">" are what happens to the scheduler's
// machine, what follows is what it does. With --rewrite the files are written anew, to be read as
// a diff.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/text.h"
#include "core/controller/machine.h"
#include "sim/words.h"

namespace holdfast {
namespace {

bool rewrite = false;

class Player {
 public:
  // What the machine does after `line`, one action a line.
  std::string play(const std::string& line) {
    std::istringstream in(line);
    std::string verb;
    in >> verb;
    if (verb == "start") return start(in);
    if (verb == "restart") return restart(false);
    if (verb == "restart-with-the-store") return restart(true);
    if (verb == "stored") {
      if (open_stores_ == 0) return "  (there is nothing to store)\n";
      --open_stores_;
      durable_ = stores_;
      return step(controller::Stored{});
    }
    if (verb == "time") return time(in);
    controller::Link link = 0;
    in >> link;
    if (verb == "closed") return step(controller::Closed{link});
    const auto message = read(verb, in);
    EXPECT_TRUE(message.has_value()) << "no such line: " << line;
    return message ? step(controller::Received{link, *message}) : "";
  }

 private:
  static std::optional<wire::Message> read(const std::string& verb, std::istream& in) {
    if (verb == "register") {
      wire::Register m{.job = "job", .host = "host", .pid = 0};
      in >> m.node_id >> m.incarnation >> m.attempt;
      m.pid = static_cast<std::int64_t>(m.incarnation);
      return m;
    }
    if (verb == "agent") return agent_state(in);
    if (verb == "heartbeat") return wire::Heartbeat{};
    if (verb == "failed") return wire::Failed{"the loss is NaN"};
    Generation generation = 0;
    in >> generation;
    if (verb == "report") {
      const Version version = number(in);
      return wire::Report{generation, version, number(in)};
    }
    if (verb == "repaired") return wire::Repaired{generation};
    if (verb == "progress") return wire::Progress{generation, number(in), 0};
    if (verb == "finished") return wire::Finished{generation, number(in)};
    return std::nullopt;
  }

  static Version number(std::istream& in) {
    std::string word;
    in >> word;
    return word == "nothing" ? kNoVersion : std::stoull(word);
  }

  // node:incarnation:attempt:alive, or the exit code in place of "alive".
  static wire::Message agent_state(std::istream& in) {
    wire::AgentState state{"job", "agent", "host", {}};
    std::string word;
    while (in >> word) {
      for (auto& c : word) c = c == ':' ? ' ' : c;
      std::istringstream parts(word);
      wire::Slot slot;
      std::string end;
      parts >> slot.node_id >> slot.incarnation >> slot.attempt >> end;
      slot.alive = end == "alive";
      if (!slot.alive) {
        slot.exit_code = std::stoi(end);
        slot.last_words = cat("ended with exit code ", slot.exit_code);
      }
      state.slots.push_back(slot);
    }
    return state;
  }

  std::string start(std::istream& in) {
    in >> options_.world_size;
    return restart(false);
  }

  std::string restart(bool with_store) {
    if (with_store) durable_ = stores_;
    open_stores_ = 0;
    machine_.emplace(options_, durable_);
    return step(controller::Started{});
  }

  std::string time(std::istream& in) {
    std::int64_t seconds = 0;
    in >> seconds;
    const Instant end = std::chrono::seconds(seconds);
    std::string text;
    for (auto at = machine_->deadline(); at && *at <= end; at = machine_->deadline()) {
      now_ = std::max(now_, *at);
      text += step(controller::TimePassed{});
    }
    now_ = end;
    return text;
  }

  std::string step(const controller::Event& event) {
    std::string text;
    for (const auto& action : machine_->step(now_, event)) {
      if (const auto* store = std::get_if<controller::Store>(&action)) {
        stores_ = store->record;
        ++open_stores_;
      }
      text += cat("  ", sim::to_words(action), "\n");
    }
    return text;
  }

  controller::Options options_{.job = "job",
                               .run_id = 7,
                               .world_size = 2,
                               .topology_timeout = std::chrono::seconds(60),
                               .lease = std::chrono::seconds(30),
                               .replacement_timeout = std::chrono::seconds(120)};
  std::optional<controller::Machine> machine_;
  std::optional<wire::Record> stores_;  // The newest that was handed out.
  std::optional<wire::Record> durable_;
  int open_stores_ = 0;  // Handed out, not answered.
  Instant now_{};
};

class Transcript : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(Transcript, ShowsWhatTheSchedulerDoes) {
  std::ifstream file(GetParam());
  std::string before;
  std::string after;
  std::string line;
  Player player;
  while (std::getline(file, line)) {
    before += line + "\n";
    if (line.starts_with("  ")) continue;
    after += line + "\n";
    if (line.starts_with("> ")) after += player.play(line.substr(2));
  }
  if (rewrite) std::ofstream(GetParam()) << after;
  EXPECT_TRUE(rewrite || before == after) << "now it would be:\n" << after;
}

std::vector<std::filesystem::path> transcripts() {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(HOLDFAST_TRANSCRIPTS)) {
    if (entry.path().extension() == ".txt" && entry.path().filename() != "CMakeLists.txt") {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

INSTANTIATE_TEST_SUITE_P(Files, Transcript, ::testing::ValuesIn(transcripts()),
                         [](const auto& entry) { return entry.param.stem().string(); });

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  holdfast::rewrite = argc > 1 && std::string(argv[1]) == "--rewrite";
  return RUN_ALL_TESTS();
}
