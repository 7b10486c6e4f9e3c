// Journal: the durable record of the simulated job, which a scheduler that is started again finds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/disk.h"
#include "sim/job.h"

namespace holdfast::sim {

class Journal {
 public:
  Journal(Job& job, const Disk& disk) : job_(job), disk_(disk) {}

  // A new run may begin with these snapshots.
  void begin(std::vector<wire::SnapshotName> snapshots);

  void make_durable(controller::Store& store);

  [[nodiscard]] const std::optional<wire::Formation>& formation() const { return formation_; }
  [[nodiscard]] const std::map<std::string, wire::KeyValue>& values() const { return values_; }
  [[nodiscard]] const std::map<std::uint64_t, wire::Writer>& writers() const { return writers_; }

  [[nodiscard]] const std::vector<wire::Remarked>& remarks() const { return remarks_; }

  // Whether it has become durable, since this was last asked, that the job begins again with a
  // snapshot.
  [[nodiscard]] bool take_load() { return std::exchange(has_load_, false); }

  // It was so at some time, and that was checked.
  [[nodiscard]] bool has_loaded() const { return has_loaded_; }
  void set_loaded() { has_loaded_ = true; }

  [[nodiscard]] bool has_ended() const {
    return formation_ && formation_->stage == wire::Stage::kEnded;
  }
  // Before there is a roster, the first process to register decides which host counts.
  [[nodiscard]] bool has_roster() const { return formation_ && !formation_->roster.empty(); }
  [[nodiscard]] bool finished(Rank rank) const;
  [[nodiscard]] bool any_finished() const;

 private:
  void check_snapshots(const wire::Formation& before);
  template <class T>
  void write_down(T& value, Result<T> (*decode)(std::string_view));

  Job& job_;
  const Disk& disk_;
  std::optional<wire::Formation> formation_;
  std::map<std::string, wire::KeyValue> values_;
  std::map<std::uint64_t, wire::Writer> writers_;
  std::vector<wire::Remarked> remarks_;
  bool has_load_ = false;
  bool has_loaded_ = false;
};

}  // namespace holdfast::sim
