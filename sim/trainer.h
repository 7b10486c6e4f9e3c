// Training: the training threads of the workers, and the groups that they form. They do the work
// that the trainer machines give them, and play the program.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <vector>

#include "base/whereabouts.h"
#include "sim/job.h"
#include "sim/journal.h"
#include "sim/memory.h"
#include "sim/worker_events.h"

namespace holdfast::sim {

// The group of one generation.
struct Group {
  std::bitset<kMostRanks> joined;
  bool aborted = false;
  bool left = false;    // A rank has ended its training in it.
  bool linked = false;  // Its ranks lie on several hosts.
  struct Operation {
    std::int32_t arrivals = 0;
    std::uint64_t sum = 0;
    Version step = 0;
  };
  std::vector<Operation> operations;
  std::map<Rank, Version> given;  // By rank: the version that it last gave to its holder.
};

class Training {
 public:
  Training(Job& job, const Journal& journal, Memory& memory, Disk& disk, WorkerEvents& events)
      : job_(job), journal_(journal), memory_(memory), disk_(disk), events_(events) {}

  // Whether the worker's training thread can do something now.
  [[nodiscard]] bool can_train(const Worker& worker) const;
  void train(Index worker);  // The training thread does the next thing.
  [[nodiscard]] Whereabouts whereabouts(const Worker& worker) const;
  void carry_out(Index worker, const trainer::Action& action);
  void fail_links(Generation of) { groups_[of].aborted = true; }
  void finish_update(Arena& arena);
  void sums_end(Index worker);  // The sum ends in whose midst the worker was stopped.
  void fail(Index worker, const wire::Reason& reason);  // The program can not go on.

  [[nodiscard]] std::map<Generation, Group>& groups() { return groups_; }
  // The exchange failed: a process had ended early without it.
  [[nodiscard]] bool asked_in_vain() const { return asked_in_vain_; }
  // A rank had lost pages of its state when its training was over.
  [[nodiscard]] bool lost_at_end() const { return lost_at_end_; }
  // A copy failed because its source's arena was lost.
  [[nodiscard]] bool source_lost() const { return source_lost_; }

 private:
  void open(Index worker);
  void resume(Index worker, const trainer::Resume& action);
  void stop_group(Index worker);
  // Does the first half of a work. False: it has no first half, or that can not be done.
  bool begin(Index worker, const trainer::Repair& work);
  bool begin(Index worker, const trainer::JoinGroup& work);
  bool begin(Index worker, const trainer::ExchangeCopies& work);
  bool begin(Index worker, const trainer::Arrive&);
  bool begin(Index worker, const trainer::Update&);
  template <class Other>
  bool begin(Index, const Other&) {
    return false;
  }
  void end(Index worker, const trainer::Repair& work);
  void end(Index worker, const trainer::Unstage&);
  void end(Index worker, const trainer::JoinGroup& work);
  void end(Index worker, const trainer::LeaveGroup&);
  void end(Index worker, const trainer::AwaitSums&);
  void end(Index worker, const trainer::Stage& work);
  void end(Index worker, const trainer::ExchangeCopies& work);
  void end(Index, const trainer::Hold&) {}
  void end(Index worker, const trainer::Arrive&);
  void end(Index worker, const trainer::Update& work);
  void end(Index worker, const trainer::Return& result);
  [[nodiscard]] std::string keep_part(const Worker& worker);
  void tell_kept(Index index);
  [[nodiscard]] std::string load(Worker& worker, const trainer::Repair& work);
  bool arrive(Worker& worker);
  [[nodiscard]] bool is_current(const trainer::Repair& work) const;
  [[nodiscard]] bool fetches(const Worker& worker, const trainer::Repair& work) const;
  void check_copies(const Worker& worker);
  void wrote(const Worker& worker);
  bool look_for_losses(Index worker);
  void check_told(const Worker& worker, trainer::Return::What what);
  void begin_step(Index worker);
  void serve_step(Index worker);
  void end_training(Index worker);
  [[nodiscard]] bool serves(const Worker& worker) const {
    return worker.rank != kNoRank && job_.setup.serves(worker.rank);
  }
  // Whether a server has served the last step, and then sees that the group is over.
  [[nodiscard]] bool sees_end(const Worker& worker) const;
  [[nodiscard]] bool complete(const Worker& worker) const;
  [[nodiscard]] bool has_come(const Worker& worker) const;
  [[nodiscard]] bool has_formed(const Worker& worker) const;
  [[nodiscard]] bool is_linked(const Worker& worker) const;
  [[nodiscard]] bool has_ended(const Worker& worker) const;
  [[nodiscard]] bool is_out_of_sight(const Worker& worker) const {
    return job_.setup.hosts && job_.agents[worker.agent].is_host_lost;
  }
  [[nodiscard]] bool is_cut_off(const Worker& worker) const;

  Job& job_;
  const Journal& journal_;
  Memory& memory_;
  Disk& disk_;
  WorkerEvents& events_;
  std::map<Generation, Group> groups_;
  bool asked_in_vain_ = false;
  bool lost_at_end_ = false;
  bool source_lost_ = false;
};

}  // namespace holdfast::sim
