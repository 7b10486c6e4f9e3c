// What the arena's tests share: a directory in shared memory, and the update as a plain loop.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "arena/arrival.h"
#include "os/testing.h"

namespace holdfast::arena::testing {

struct Directory : os::TemporaryFolder {
  Directory() : TemporaryFolder("/dev/shm") {}
  [[nodiscard]] std::string file(const std::string& name) const { return *this / name; }
};

// Copies another rank's arena, with the first `private_bytes` private bytes.
inline Status copy(Arena& to, const std::string& path, Version version,
                   std::uint64_t private_bytes) {
  Arrival arrival(to, version, private_bytes);
  auto copied = arrival.copy(Arrival::From::kRank, path);
  return copied ? arrival.end() : copied;
}

// The state of an arena in private memory. Its update is that of kernels.h, written once more
// without lines, undo or threads.
struct Reference {
  Optimizer optimizer = Optimizer::kSgd;
  std::vector<float> w, m, v;

  Reference(Optimizer its_optimizer, std::span<const float> start)
      : optimizer(its_optimizer), w(start.begin(), start.end()), m(w.size()), v(w.size()) {}

  void update(const UpdateArguments& a, std::span<const float> gradients) {
    std::vector<float> g(gradients.begin(), gradients.end());
    if (a.clip_norm != 0) apply_clip(a, g);
    if (a.weight_decay != 0) apply_decay(a, g);
    const auto rate = static_cast<float>(-a.learning_rate);
    const std::size_t n = w.size();
    if (optimizer == Optimizer::kSgd) {
      for (std::size_t i = 0; i < n; ++i) w[i] += rate * g[i];
    } else if (optimizer == Optimizer::kMomentum) {
      const auto mu = static_cast<float>(a.momentum);
      for (std::size_t i = 0; i < n; ++i) m[i] = mu * m[i] + g[i];
      for (std::size_t i = 0; i < n; ++i) w[i] += rate * m[i];
    } else {
      apply_adam(a, g);
    }
  }

 private:
  static void apply_clip(const UpdateArguments& a, std::vector<float>& g) {
    double sums[16] = {};
    for (std::size_t i = 0; i < g.size(); ++i) sums[i % 16] += double{g[i]} * double{g[i]};
    double sum = 0;
    for (const double each : sums) sum += each;
    const auto scale = static_cast<float>(std::min(1.0, a.clip_norm / (std::sqrt(sum) + 1e-6)));
    for (float& x : g) x *= scale;
  }

  void apply_decay(const UpdateArguments& a, std::vector<float>& g) {
    const auto decay = static_cast<float>(a.weight_decay);
    const auto keep = static_cast<float>(1 - a.learning_rate * a.weight_decay);
    if (optimizer == Optimizer::kAdamW) {
      for (float& x : w) x *= keep;
    } else {
      for (std::size_t i = 0; i < w.size(); ++i) g[i] += decay * w[i];
    }
  }

  void apply_adam(const UpdateArguments& a, const std::vector<float>& g) {
    const auto count = static_cast<double>(a.update_count);
    const auto rest1 = static_cast<float>(1 - a.beta1);
    const auto beta2 = static_cast<float>(a.beta2);
    const auto rest2 = static_cast<float>(1 - a.beta2);
    const auto epsilon = static_cast<float>(a.epsilon);
    const auto correction = static_cast<float>(std::sqrt(1 - std::pow(a.beta2, count)));
    const auto step = static_cast<float>(-(a.learning_rate / (1 - std::pow(a.beta1, count))));
    const std::size_t n = w.size();
    for (std::size_t i = 0; i < n; ++i) m[i] += rest1 * (g[i] - m[i]);
    for (std::size_t i = 0; i < n; ++i) v[i] = beta2 * v[i] + rest2 * g[i] * g[i];
    for (std::size_t i = 0; i < n; ++i) {
      w[i] += step * m[i] / (std::sqrt(v[i]) / correction + epsilon);
    }
  }
};

}  // namespace holdfast::arena::testing
