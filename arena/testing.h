// What the arena's tests share: a directory in shared memory, and the update as a plain loop.
#pragma once

#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "arena/arena.h"

namespace holdfast::arena::testing {

class Directory {
 public:
  Directory() {
    char name[] = "/dev/shm/holdfast-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// The state of an arena in private memory, advanced by the order of operations that kernels.h
// promises, written once more: no lines, no undo, no threads.
struct Reference {
  Optimizer optimizer = Optimizer::kSgd;
  std::vector<float> w, m, v;

  Reference(Optimizer its_optimizer, std::span<const float> start)
      : optimizer(its_optimizer), w(start.begin(), start.end()), m(w.size()), v(w.size()) {}

  void update(const UpdateArguments& a, std::span<const float> gradients) {
    const auto rate = static_cast<float>(-a.learning_rate);
    const auto decay = static_cast<float>(a.weight_decay);
    const auto keep = static_cast<float>(1 - a.learning_rate * a.weight_decay);
    const auto mu = static_cast<float>(a.momentum);
    const auto count = static_cast<double>(a.update_count);
    const auto beta1 = static_cast<float>(1 - a.beta1);
    const auto beta2 = static_cast<float>(a.beta2);
    const auto rest2 = static_cast<float>(1 - a.beta2);
    const auto epsilon = static_cast<float>(a.epsilon);
    const auto correction = static_cast<float>(std::sqrt(1 - std::pow(a.beta2, count)));
    const auto step = static_cast<float>(-(a.learning_rate / (1 - std::pow(a.beta1, count))));
    for (std::size_t i = 0; i < w.size(); ++i) {
      float g = gradients[i];
      if (a.weight_decay != 0 && optimizer == Optimizer::kAdamW) w[i] *= keep;
      if (a.weight_decay != 0 && optimizer != Optimizer::kAdamW) g += decay * w[i];
      if (optimizer == Optimizer::kSgd) {
        w[i] += rate * g;
      } else if (optimizer == Optimizer::kMomentum) {
        m[i] = mu * m[i] + g;
        w[i] += rate * m[i];
      } else {
        m[i] += beta1 * (g - m[i]);
        v[i] = beta2 * v[i] + rest2 * g * g;
        w[i] += step * m[i] / (std::sqrt(v[i]) / correction + epsilon);
      }
    }
  }
};

}  // namespace holdfast::arena::testing
