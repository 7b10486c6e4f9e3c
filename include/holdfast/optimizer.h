// The optimizers. Each does what its namesake in torch.optim does. The update itself is Holdfast's:
// one pass over the memory, protected against the death of the process at any instant.
//
// The results are near torch's, not equal. The order of operations is torch's, in float32. But
// torch's vectorised kernels fuse some multiply-adds, and Holdfast's round twice: an element may
// differ in its last bit at each step. After 30 steps of a small network (train/state_test.cc) no
// parameter differs from torch's by 2e-6 (Sgd), 5e-6 (Momentum) or 2e-5 (Adam, AdamW). Holdfast's
// bits are the same on every machine and for every number of threads.
//
// A parameter that got no gradient in a step is updated by zeros: weight decay and momentum still
// move it. torch.optim leaves such a parameter alone.
#pragma once

#include <cstdint>
#include <functional>
#include <variant>

namespace holdfast {

// Gives the learning rate of step n (from 1), in place of `learning_rate`. It must depend on n
// alone: a process that replaces another calls it for the same n again.
using Schedule = std::function<double(std::uint64_t n)>;

struct Sgd {
  double learning_rate = 0.01;
  double weight_decay = 0;
  Schedule schedule;
};

// SGD with momentum; no dampening, not Nesterov's.
struct Momentum {
  double learning_rate = 0.01;
  double momentum = 0.9;
  double weight_decay = 0;
  Schedule schedule;
};

struct Adam {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // Times the parameter, added to the gradient (L2).
  Schedule schedule;
};

struct AdamW {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // Decoupled: shrinks the parameter, and leaves the gradient alone.
  Schedule schedule;
};

using Optimizer = std::variant<Sgd, Momentum, Adam, AdamW>;

}  // namespace holdfast
