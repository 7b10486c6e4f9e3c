// A trainer whose threads are played by a test.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/trainer/machine.h"

namespace holdfast::trainer {

using namespace std::chrono_literals;
using wire::Reason;
using What = Return::What;

class TrainerTest : public ::testing::Test {
 protected:
  Actions bring(const Event& event) {
    now_ += 1ms;
    auto actions = machine_->step(now_, event);
    for (const auto& action : actions) {
      if (const auto* given = std::get_if<Do>(&action)) work_.push_back(given->work);
    }
    return actions;
  }
  // The training thread takes its next work, which must be of this kind.
  template <class Kind>
  Kind take() {
    if (work_.empty() || !std::holds_alternative<Kind>(work_.front())) {
      ADD_FAILURE() << "other work, or none";
      return {};
    }
    Kind work = std::get<Kind>(work_.front());
    work_.erase(work_.begin());
    return work;
  }
  template <class Kind>
  static bool has(const Actions& actions) {
    for (const auto& action : actions) {
      if (std::holds_alternative<Kind>(action)) return true;
    }
    return false;
  }
  // Brings the rank into the group of generation 1, between two steps, at version 4.
  void stand(bool linked = false) {
    (void)bring(JoinCalled{{4, 4}});
    (void)go(1, 4);
    EXPECT_EQ(take<Return>().what, What::kJoined);
    begin(linked);
  }
  void begin(bool linked = false) {
    (void)bring(StepBegun{});
    (void)take<JoinGroup>();
    (void)bring(Formed{.linked = linked});
    EXPECT_EQ(take<Return>().what, What::kBegun);
  }
  void arrive() {
    (void)bring(StepEnded{});
    (void)take<AwaitSums>();
    (void)bring(SumsDone{});
    (void)take<Stage>();
    (void)bring(Staged{});
    (void)take<Arrive>();
  }
  Actions assign(wire::Assignment part, bool is_first = false) {
    return bring(Assigned{std::move(part), is_first, std::make_shared<AddressBook>()});
  }
  Actions repair(Generation generation, Version version, wire::Act act) {
    return assign({.generation = generation,
                   .stage = wire::Stage::kRepairing,
                   .version = version,
                   .order = {.act = act, .source = {}}});
  }
  Actions go(Generation generation, Version version, Rank ended = kNoRank) {
    return assign({.generation = generation,
                   .stage = wire::Stage::kRunning,
                   .version = version,
                   .ended = ended});
  }
  // In generation 1, the scheduler stops the rank for generation 2.
  Actions stop(bool idle) {
    EXPECT_TRUE(has<StopGroup>(assign({.generation = 2})));
    return bring(GroupStopped{idle});
  }
  template <class Message>
  static const Message* said(const Actions& actions) {
    for (const auto& action : actions) {
      const auto* say = std::get_if<Say>(&action);
      if (say && std::holds_alternative<Message>(say->message)) {
        return &std::get<Message>(say->message);
      }
    }
    return nullptr;
  }

  Options options_{.replacement_timeout = 60s,
                   .link_patience = 1s,
                   .forming_patience = 20s,
                   .scheduler_timeout = 30s,
                   .progress_interval = 250ms};
  std::optional<Machine> machine_{std::in_place, options_};
  std::vector<Work> work_;
  Instant now_{};
};

}  // namespace holdfast::trainer
