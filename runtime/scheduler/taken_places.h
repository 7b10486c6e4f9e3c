// TakenPlaces: who asked for a place of the job that it can not have, or has to wait for, because
// other processes have them. Each is named once, and so many at most: a restarted one comes anew.
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
    bool waits = false;  // Else it was refused.
    std::string why;
  };

  // A kTaken: what the log is to say, where this process was not named before.
  std::optional<std::string> note(const controller::Note& note);

  // The newest that were named, the newest last. One that waited may have got its place since.
  [[nodiscard]] const std::deque<Seeker>& newest() const { return newest_; }

 private:
  std::set<std::tuple<std::string, std::string, std::int64_t, bool>> named_;
  std::deque<Seeker> newest_;
};

}  // namespace holdfast::runtime
