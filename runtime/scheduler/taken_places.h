// TakenPlaces: the processes that asked for a place of the job while another process has it, and so
// wait or were refused. Each is logged once, and kNamed of them at most, because a process that is
// restarted again and again counts as a new one each time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "core/controller/machine.h"

namespace holdfast::runtime {

class TakenPlaces {
 public:
  static constexpr std::size_t kNamed = 64;
  static constexpr std::size_t kShown = 8;

  struct Seeker {
    controller::Seeker who;
    bool waits = false;  // False: it was refused.
    std::string why;
  };

  // Takes in a kTaken. Returns the line to log; nullopt if this process was named before, or kNamed
  // are.
  std::optional<std::string> note(const controller::Note& note);

  // The last kShown that were named, the newest last. One that waited may have got its place since.
  [[nodiscard]] const std::deque<Seeker>& newest() const { return newest_; }

 private:
  std::set<std::tuple<std::string, std::string, std::int64_t, bool>> named_;
  std::deque<Seeker> newest_;
};

}  // namespace holdfast::runtime
