// bin/sim: runs schedules of the simulated world until one violates an invariant; prints, replays
// and shrinks that one. Exit code 0: no violation; 1: a violation; 2: wrong arguments.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/text.h"
#include "sim/election_world.h"
#include "sim/world.h"
#include "wording/reasons.h"

namespace holdfast::sim {
namespace {

constexpr const char* kUsage =
    "usage: sim [--world swarm|hosts|farewell|rehearsed|hung|lossy|served|snapshots|paused|\n"
    "                    wide|small|smallest|exchange|election|candidates]\n"
    "           [--schedules N] [--seed S] [--exhaustive]\n"
    "           [--seconds T] [--tape FILE] [--save FILE] [--print] [--shrink]\n"
    "  --schedules N  how many (100000)       --seed S     of the first (1); schedule I has S+I\n"
    "  --only I       only the I-th           --exhaustive count through all of the world\n"
    "  --seconds T    stop after so long      --tape FILE  replay this tape\n"
    "  --print        tell the (last) run     --shrink     make a failing tape small\n"
    "  --save FILE    where a failing tape goes, or the one of --only\n";

struct Arguments {
  std::string world = "swarm";
  std::uint64_t schedules = 100'000;
  std::uint64_t seed = 1;
  std::optional<std::uint64_t> only;
  double seconds = 0;
  std::string tape;
  std::string save;
  bool exhaustive = false;
  bool print = false;
  bool shrink = false;
};

std::optional<Arguments> parse(const std::vector<std::string>& words) {
  Arguments a;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--exhaustive")
      a.exhaustive = true;
    else if (word == "--print")
      a.print = true;
    else if (word == "--shrink")
      a.shrink = true;
    else if (i + 1 == words.size())
      return std::nullopt;
    else if (word == "--world")
      a.world = words[++i];
    else if (word == "--tape")
      a.tape = words[++i];
    else if (word == "--save")
      a.save = words[++i];
    else if (word == "--schedules")
      a.schedules = std::strtoull(words[++i].c_str(), nullptr, 10);
    else if (word == "--seed")
      a.seed = std::strtoull(words[++i].c_str(), nullptr, 10);
    else if (word == "--only")
      a.only = std::strtoull(words[++i].c_str(), nullptr, 10);
    else if (word == "--seconds")
      a.seconds = std::strtod(words[++i].c_str(), nullptr);
    else
      return std::nullopt;
  }
  Replay nothing({});
  if (!is_election(a.world) && !draw_setup(a.world, nothing)) return std::nullopt;
  if (a.exhaustive && a.world == "swarm") a.world = "small";
  return a;
}

class Driver {
 public:
  explicit Driver(Arguments arguments) : a_(std::move(arguments)) {}

  int run() {
    const bool clean = !a_.tape.empty() ? replay_file() : a_.exhaustive ? count() : swarm();
    const double seconds = elapsed();
    std::printf(
        "%llu schedules, %llu transitions, %llu faults, %.1f s, %.0f schedules/s\n",
        static_cast<unsigned long long>(runs_), static_cast<unsigned long long>(transitions_),
        static_cast<unsigned long long>(faults_), seconds, static_cast<double>(runs_) / seconds);
    if (snapshots_ > 0) {
      std::printf("%llu snapshots, %llu times begun again with one\n",
                  static_cast<unsigned long long>(snapshots_),
                  static_cast<unsigned long long>(loads_));
    }
    for (const auto& [reason, number] : ends_) {
      std::printf("  %9llu ended: %s\n", static_cast<unsigned long long>(number), reason.c_str());
    }
    return clean ? 0 : 1;
  }

 private:
  [[nodiscard]] double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }
  [[nodiscard]] bool late() const { return a_.seconds > 0 && elapsed() > a_.seconds; }

  void tally(const Outcome& outcome) {
    ++runs_;
    transitions_ += outcome.transitions;
    faults_ += outcome.faults;
    snapshots_ += outcome.snapshots;
    loads_ += outcome.loads;
    std::string reason = outcome.success ? "well" : wording::in_words(outcome.reason);
    for (auto& c : reason) {
      if (c >= '0' && c <= '9') c = '#';
    }
    if (ends_.size() < 40 || ends_.contains(reason)) ++ends_[reason];
  }

  bool swarm() {
    const std::uint64_t first = a_.only.value_or(0);
    const std::uint64_t end = a_.only ? first + 1 : a_.schedules;
    for (std::uint64_t i = first; i < end && !late(); ++i) {
      Random choices(a_.seed + i);
      const Outcome outcome = simulate(a_.world, choices);
      tally(outcome);
      const bool look = i % 64 == 0 || a_.only;
      if (look && !repeats(choices.tape(), outcome)) return false;
      if (!outcome.violation.empty()) {
        const std::string again = cat("sim --world ", a_.world, " --seed ", a_.seed, " --only ", i);
        return found(cat("schedule ", i, " (", again, " --print --shrink)"), choices.tape(),
                     outcome);
      }
      if (a_.print && a_.only) tell(choices.tape());
      if (a_.only && !a_.save.empty()) std::ofstream(a_.save) << to_text(a_.world, choices.tape());
    }
    return true;
  }

  bool repeats(const Tape& tape, const Outcome& outcome) {
    Replay again(tape);
    if (simulate(a_.world, again).hash == outcome.hash) return true;
    std::printf("S14: the same tape does not give the same run\n");
    return false;
  }

  bool count() {
    Exhaustive choices;
    do {
      const Outcome outcome = simulate(a_.world, choices);
      tally(outcome);
      if (!outcome.violation.empty()) {
        return found(cat("schedule ", runs_ - 1), choices.tape(), outcome);
      }
      if (late()) {
        std::printf("not all: stopped by --seconds\n");
        return true;
      }
    } while (choices.next());
    std::printf("these are all schedules of world %s\n", a_.world.c_str());
    return true;
  }

  bool replay_file() {
    std::ifstream file(a_.tape);
    std::stringstream text;
    text << file.rdbuf();
    const auto named = from_text(text.str());
    if (!named) {
      std::printf("%s: %s\n", a_.tape.c_str(), named.error().what.c_str());
      return false;
    }
    a_.world = named->world;
    Replay choices(named->tape);
    const Outcome outcome = simulate(a_.world, choices);
    tally(outcome);
    if (!outcome.violation.empty()) return found(a_.tape, named->tape, outcome);
    if (a_.print) tell(named->tape);
    return true;
  }

  bool found(const std::string& where, Tape tape, const Outcome& outcome) {
    std::printf("%s violates %s\n", where.c_str(), outcome.violation.c_str());
    if (a_.shrink) {
      const std::string kind = outcome.violation.substr(0, 24);
      tape = sim::shrink(std::move(tape), [&](const Tape& candidate) {
        Replay choices(candidate);
        return simulate(a_.world, choices).violation.substr(0, 24) == kind;
      });
    }
    if (!a_.save.empty()) std::ofstream(a_.save) << to_text(a_.world, tape);
    std::printf("tape: %s", to_text(a_.world, tape).c_str());
    if (a_.print) tell(tape);
    return false;
  }

  void tell(const Tape& tape) {
    std::vector<std::string> log;
    Replay choices(tape);
    const Outcome outcome = simulate(a_.world, choices, &log);
    for (const auto& line : log) std::printf("%s\n", line.c_str());
    std::printf("=> %s%s; hash %016llx\n", outcome.violation.c_str(),
                outcome.success ? "ended well" : wording::in_words(outcome.reason).c_str(),
                static_cast<unsigned long long>(outcome.hash));
  }

  Arguments a_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::uint64_t runs_ = 0;
  std::uint64_t transitions_ = 0;
  std::uint64_t faults_ = 0;
  std::uint64_t snapshots_ = 0;
  std::uint64_t loads_ = 0;
  std::map<std::string, std::uint64_t> ends_;
};

}  // namespace
}  // namespace holdfast::sim

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto arguments = holdfast::sim::parse(words);
  if (!arguments) {
    std::fputs(holdfast::sim::kUsage, stderr);
    return 2;
  }
  return holdfast::sim::Driver(*arguments).run();
}
