// The simulated election: the schedulers of a job on several hosts, and those of other jobs with
// the same name; an etcd whose answers are late or lost and whose leases end late; and faults.
// Election sets the jobs up, lets faults happen, and checks that all is settled after the last one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/choices.h"
#include "sim/election_jobs.h"
#include "sim/election_schedulers.h"
#include "sim/etcd_client.h"
#include "sim/outcome.h"

namespace holdfast::sim {

class Election {
 public:
  Election(bool small, Choices& choices, std::vector<std::string>* log)
      : jobs_(small, choices, log) {}
  Outcome run();

 private:
  using Index = ElectionJobs::Index;

  void set_up();
  void leave_remains(const std::string& token);
  void start_job(const std::string& token, Index hosts, Duration after);
  void start_anew(std::uint64_t run, bool by_hand);
  Index add_host(const std::string& token, std::uint64_t run, bool standby);
  void pass_time_until(Instant end);
  void maybe_fault();
  void strike(std::uint32_t fault);
  void check_settled();

  // Each knows only those declared before it.
  ElectionJobs jobs_;
  EtcdClient client_{jobs_};
  ElectionSchedulers schedulers_{jobs_, client_};

  std::uint32_t faults_left_ = 0;
  std::uint32_t struck_ = 0;
  std::uint32_t rarity_ = 1;  // The rarity of faults, as in Choices::pick().
};

// In the world "election" everything is drawn. "candidates" is for exhaustive runs: two schedulers,
// one fault, and one request to etcd that changes something and goes wrong.
[[nodiscard]] bool is_election(const std::string& world);

// Requires is_election(world).
[[nodiscard]] Outcome simulate_election(const std::string& world, Choices& choices,
                                        std::vector<std::string>* log = nullptr);

}  // namespace holdfast::sim
