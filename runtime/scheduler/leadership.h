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
#include "core/election/machine.h"
#include "io/etcd_journal.h"
#include "io/etcd_lease.h"
#include "io/loop.h"
#include "io/trace.h"

namespace holdfast::runtime {

using election::Leader;
[[nodiscard]] std::string to_text(const Leader& leader);
// Reads what to_text() has written; nullopt: `text` is something else.
[[nodiscard]] std::optional<Leader> leader_of(std::string_view text);

class Leadership {
 public:
  // Waits until this process is the job's scheduler, as core/election decides. Null: the job has
  // ended.
  static Result<std::unique_ptr<Leadership>> wait_for(io::Loop& loop,
                                                      const config::Settings& settings,
                                                      io::Trace& trace);

  [[nodiscard]] const election::Lead& lead() const { return lead_; }
  [[nodiscard]] Result<std::unique_ptr<io::Journal>> journal() const;

  // Writes this scheduler's address into etcd and into the leader file of this host. From now on
  // all processes of the job find it.
  Status publish(const std::string& directory, const std::string& host, std::uint16_t port);
  void give_up() { lease_->give_up(); }

 private:
  friend class Campaign;
  Leadership(const config::Settings& settings, election::Lead lead,
             std::unique_ptr<io::EtcdLease> lease)
      : settings_(&settings), lead_(std::move(lead)), lease_(std::move(lease)) {}

  const config::Settings* settings_;
  election::Lead lead_;
  std::unique_ptr<io::EtcdLease> lease_;
};

}  // namespace holdfast::runtime
