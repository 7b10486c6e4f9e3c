// Leadership: of all schedulers of a job, one at a time has the job's key in etcd, bound to a
// lease. All others stand by.
//
// A scheduler that has lost its lease can store nothing, since each write of its journal has the
// condition that its key is there; and it says nothing that is not stored. It ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "config/settings.h"
#include "io/etcd_journal.h"
#include "io/etcd_lease.h"
#include "io/loop.h"
#include "io/trace.h"

namespace holdfast::runtime {

// What a scheduler says of itself in etcd, one line each.
struct Leader {
  std::uint64_t run = 0;
  std::string host;  // Where it listens; empty: it does not yet.
  std::uint16_t port = 0;
  std::string host_name;
  std::string agent;          // HOLDFAST_AGENT.
  std::uint64_t attempt = 0;  // HOLDFAST_ATTEMPT.
  std::string token_mark;     // Tells jobs of one name apart (runtime/jobs/membership.h).
  bool operator==(const Leader&) const = default;
};
[[nodiscard]] std::string to_text(const Leader& leader);
// Nothing: that is no such text.
[[nodiscard]] std::optional<Leader> leader_of(std::string_view text);

class Leadership {
 public:
  // Waits until this process is the job's scheduler. Nothing: the job has ended. The first
  // scheduler of a run is that of its host 0; all others wait for the lease of one whose run they
  // have seen.
  static Result<std::unique_ptr<Leadership>> wait_for(io::Loop& loop,
                                                      const config::Settings& settings,
                                                      io::Trace& trace);

  [[nodiscard]] std::uint64_t run() const { return leader_.run; }
  // It goes on with a run that others have served.
  [[nodiscard]] bool takes_over() const { return takes_over_; }
  // From when it last saw the key of its predecessor; nothing: it saw none.
  [[nodiscard]] std::optional<Duration> without_scheduler() const { return without_; }
  [[nodiscard]] std::string predecessor() const { return predecessor_; }
  [[nodiscard]] Result<std::unique_ptr<io::Journal>> journal() const;

  // All processes of the job find it there from now on.
  Status publish(const std::string& directory, const std::string& host, std::uint16_t port);
  void give_up() { lease_->give_up(); }

 private:
  friend class Campaign;
  Leadership() = default;

  const config::Settings* settings_ = nullptr;
  Leader leader_;
  std::unique_ptr<io::EtcdLease> lease_;
  std::int64_t created_ = 0;
  bool takes_over_ = false;
  std::optional<Duration> without_;
  std::string predecessor_;
};

}  // namespace holdfast::runtime
