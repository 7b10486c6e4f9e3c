// Finds the ranks of this host that stand still: for longer than a few of their own steps, they
// have made no step and come to no operation of all ranks. Which of them holds up the others is for
// the scheduler to say (core/controller/stalls.h), for it hears of all hosts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/whereabouts.h"
#include "core/agent/events.h"
#include "core/agent/job.h"
#include "wire/messages.h"

namespace holdfast::agent {

// A rank stands still after this many looks, or after this many times its own longest step of late.
inline constexpr int kStallLooks = 7;
inline constexpr int kStallSteps = 3;
// The same before its first step, which may take long: a graph may be compiled.
inline constexpr int kFirstStallLooks = 67;

class StallWatch {
 public:
  explicit StallWatch(Job& job) : job_(job) {}

  void on(const Looked& e);
  void on(const Inspected& e);
  void receive(const wire::Inspect& m);
  void begin_anew();  // What was seen so far does not count: the job is paused, or goes on.
  [[nodiscard]] bool stands(const std::string& node_id) const;
  [[nodiscard]] std::vector<wire::StandingState> standing() const;

 private:
  struct Seen {
    Whereabouts where;
    int looks = 0;         // How often it was found there again.
    int in_step = 0;       // Looks since it made its newest step.
    int longest_step = 0;  // In looks; older steps count ever less.
    bool stands = false;
    bool has_waited =
        false;           // Since it stands there, it has waited for an operation of some ranks.
    std::string report;  // What it does, if that was asked for.
  };

  void see(Seen& seen, const Whereabouts& where, bool on_time);

  Job& job_;
  std::map<Process, Seen> seen_;  // The workers of this host.
};

}  // namespace holdfast::agent
