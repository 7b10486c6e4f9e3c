// RunLog: what is kept of a simulated run: a hash of all that happened and, if somebody wants it,
// the run in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/prng.h"

namespace holdfast::sim {

class RunLog {
 public:
  // `lines`: gets the run in words; may be null.
  explicit RunLog(std::vector<std::string>* lines) : lines_(lines) {}

  [[nodiscard]] bool is_wanted() const { return lines_ != nullptr; }
  void tell(const std::string& text) {
    if (lines_) lines_->push_back(text);
  }
  void fold(std::uint64_t number) { hash_ = mix(hash_ ^ number) + 0x9e3779b97f4a7c15U; }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

 private:
  std::vector<std::string>* lines_;
  std::uint64_t hash_ = 0;
};

}  // namespace holdfast::sim
