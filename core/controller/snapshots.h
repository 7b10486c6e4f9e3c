// Snapshots: when one is made, and that it is whole before it counts.
//
// It goes in rounds, one at a time. Each rank copies what it has to give once it has committed the
// version (kTaking). Then the agents write these copies to the disk, beside the steps (kWriting).
// Then one agent names them: only now it is a snapshot (kNaming). Whatever goes wrong costs this
// snapshot alone. The scheduler's newest knowledge of a version may be old when it asks. So it asks
// for a version some steps ahead, and for one further ahead if that was too near.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/controller/job.h"
#include "core/controller/remarks.h"
#include "core/controller/rendezvous.h"

namespace holdfast::controller {

class Snapshots {
 public:
  Snapshots(Job& job, Rendezvous& rendezvous, Remarks& remarks)
      : job_(job), rendezvous_(rendezvous), remarks_(remarks) {}

  void receive(Link link, const wire::Snapshot& m);
  void closed(Link link);
  void lost(Link link);  // The host of the agent at this link counts as lost, or it has left.
  void go_on();  // After every event: begins a round that is due, and ends one that is in vain.
  [[nodiscard]] std::optional<Instant> deadline() const;
  // Whose answers the round under way waits for; empty: there is none.
  [[nodiscard]] std::set<Link> waits_for() const {
    return state_ == State::kIdle ? std::set<Link>() : waits_for_;
  }

 private:
  enum class State : std::uint8_t { kIdle, kTaking, kWriting, kNaming };

  [[nodiscard]] bool may_begin() const;
  [[nodiscard]] std::string why_none() const;
  [[nodiscard]] bool is_heard(Link agent) const;
  void begin();
  void lack_agent(const Member& member);
  void write();
  void name_it();
  void keep();
  void give_up(Rank rank, const std::string& host, const std::string& why);
  void take_words_of(Link link, const wire::Snapshot& m);
  void ask(Link link, const wire::Snapshot& m);
  void answer(wire::SnapshotWord word, const std::string& why);
  void answer_in_vain();
  [[nodiscard]] bool is_asked() const;
  void drop();
  void strike(Link link, const wire::Snapshot& m);
  [[nodiscard]] wire::Snapshot word(wire::SnapshotWord word) const;

  Job& job_;
  Rendezvous& rendezvous_;
  Remarks& remarks_;
  State state_ = State::kIdle;
  Generation generation_ = 0;  // In which it was begun.
  Version version_ = 0;
  std::string name_;
  std::set<Link> waits_for_;                               // Ranks while kTaking; then agents.
  std::map<Link, std::vector<wire::SnapshotFile>> asked_;  // Of each agent.
  std::vector<wire::SnapshotFile> files_;                  // That are written.
  Version ahead_ = 2;            // How many steps ahead of the newest one it asks.
  std::optional<Instant> next_;  // When the next round is due; nullopt: not known yet.
  std::optional<Instant>
      lacking_since_;  // A rank has no agent; nullopt: all have, as far as known.
  struct Ask {
    Version version = 0;  // Of this step or a later one.
    bool stops = false;   // Then the job ends.
  };
  std::map<Link, Ask> asks_;     // Of whom waits for one.
  Instant written_by_{};         // While kWriting and kNaming: the round is given up then.
  std::optional<Instant> told_;  // When users were told last that one has failed.
};

}  // namespace holdfast::controller
