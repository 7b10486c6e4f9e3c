// An agent with the places w0 and w1, and what it has done and sent.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/agent/machine.h"

namespace holdfast::agent {

using wire::Ending;
using wire::Reason;

// The ending for an exit code as a shell reports it.
inline Ending ending(std::int32_t code) {
  using Kind = Ending::Kind;
  return code > 128 ? Ending{Kind::kSignalled, code - 128} : Ending{Kind::kExited, code};
}

class AgentTest : public ::testing::Test {
 protected:
  static constexpr std::int32_t kBound = -1;  // For `spares`: one bound spare for each place.

  void start(std::int32_t spares = 0, std::int32_t max_restarts = 1, bool scheduler = true,
             std::int32_t world_size = 2) {
    Options options;
    options.job = "job";
    options.agent_id = "agent";
    options.host = "host";
    options.workers = {"w0", "w1"};
    options.world_size = world_size;
    options.runs_scheduler = scheduler;
    options.spares = spares;
    options.bound_spares = spares == kBound;
    options.max_restarts = max_restarts;
    options.rehearsals = options_;
    options.takes_drills = takes_drills_;
    options.snapshot_patience = patience_;
    machine_.emplace(std::move(options));
    step(Started{});
  }

  void step(const Event& event) {
    done_.clear();
    for (auto& action : machine_->step(event)) {
      if (const auto* spawn = std::get_if<Spawn>(&action)) {
        if (spawn->role == Role::kSpare)
          spares_.push_back(*spawn);
        else if (spawn->role == Role::kRehearsal)
          rehearsals_.push_back(*spawn);
        else
          places_[spawn->node_id] = *spawn;
        ++spawned_;
      } else if (const auto* promotion = std::get_if<Promote>(&action)) {
        promoted_.push_back(*promotion);
        done_.emplace_back("promote");
      } else if (const auto* kill = std::get_if<Kill>(&action)) {
        killed_.push_back(*kill);
        done_.emplace_back("kill");
      } else if (const auto* send = std::get_if<Send>(&action)) {
        said_.push_back(send->message);
      } else if (const auto* left = std::get_if<LeaveAddresses>(&action)) {
        left_.push_back(left->addresses);
      } else if (const auto* exit = std::get_if<Exit>(&action)) {
        exit_ = *exit;
      } else if (const auto* pause = std::get_if<WantPause>(&action)) {
        pauses_.push_back(*pause);
      } else if (const auto* stay = std::get_if<Stay>(&action)) {
        stays_.push_back(*stay);
      } else if (const auto* say = std::get_if<Say>(&action)) {
        told_.push_back(say->reason);
      } else if (const auto* log = std::get_if<Log>(&action)) {
        logged_.push_back(log->reason);
      } else if (const auto* end = std::get_if<EndHost>(&action)) {
        ends_.push_back(end->stops);
      } else if (std::holds_alternative<WantGrace>(action)) {
        ++graces_;
      }
    }
  }

  void look(std::set<Process> stopped, bool on_time = true) {
    step(Looked{std::move(stopped), on_time});
  }
  void dies(Process process, std::int32_t code) { step(Died{process, ending(code), 1}); }
  // The process is ended by an exception, after it has made step `version`.
  void raises(Process process, const std::string& error, Version version) {
    step(Died{process, ending(1), 1, error, version});
  }
  // The lifeline tells of the death at once, and the kernel of its cause when the memory is freed.
  void dies_and_is_explained(Process process, std::int32_t code) {
    step(Died{process, {}, 5});
    step(Died{process, ending(code), 5});
  }
  [[nodiscard]] Process at(const std::string& node) const { return places_.at(node).process; }

  std::optional<Machine> machine_;
  std::map<std::string, Spawn> places_;  // The newest process of each place.
  std::vector<Spawn> spares_;
  RehearsalOptions options_;
  Duration patience_{};  // Options::snapshot_patience
  bool takes_drills_ = false;
  std::vector<Spawn> rehearsals_;
  std::vector<Reason> logged_;
  std::vector<std::string>
      // What it has killed and promoted at the newest event, in this order.
      done_;
  std::vector<Promote> promoted_;
  std::vector<Kill> killed_;
  std::vector<wire::Message> said_;
  std::vector<wire::Addresses> left_;  // Books left for the workers.
  std::vector<Reason> told_;           // What the user was told.
  std::optional<Exit> exit_;
  std::vector<WantPause> pauses_;
  std::vector<Stay> stays_;
  std::vector<bool> ends_;  // EndHost::stops
  int spawned_ = 0;
  int graces_ = 0;
};

}  // namespace holdfast::agent
