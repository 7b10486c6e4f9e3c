// How a row is updated. For each value, in float32 and in this order, without fused multiply-adds;
// scalars are computed in double and rounded to float once. So the bits are the same on every
// machine. bfloat16 values are computed in float32 and rounded to nearest, ties to even.
//
//   g = g + weight_decay*w                      all but kAdamW, if weight_decay is not 0
//
//   kSgd
//     w = w - rate*g
//   kMomentum
//     m = momentum*m + g
//     w = w - rate*m                            not Nesterov's
//     w = w - rate*(g + momentum*m)             Nesterov's, kTorch
//     w = w - (rate*g + rate*momentum*m)        Nesterov's, kMindSpore
//   kAdagrad
//     s = s + g*g
//     w = w - rate*g / (sqrt(s) + epsilon)
//   kRowAdagrad
//     s = s + the mean of g*g over the row (added up in double, in the order of the row)
//     w = w - rate*g / (sqrt(s) + epsilon)
//   kAdam, and kAdamW after w = w*(1 - rate*weight_decay); c1 = 1 - beta1^count, c2 likewise
//     m = m + (1 - beta1)*(g - m)
//     v = beta2*v + ((1 - beta2)*g)*g
//     w = w - (rate/c1)*m / (sqrt(v)/sqrt(c2) + epsilon)      kTorch
//     w = w - (rate*sqrt(c2)/c1)*m / (sqrt(v) + epsilon)      kMindSpore
//   kFtrl
//     n = s + g*g
//     z = z + g - (sqrt(n) - sqrt(s)) / rate*w
//     s = n
//     w = |z| > l1 ? (sign(z)*l1 - z) / (sqrt(n)/rate + 2*l2) : 0
//
// The Adam of kTorch is torch.optim.Adam (and AdamW, and MindSpore's mint.optim.AdamW); that of
// kMindSpore is nn.Adam and nn.LazyAdam of MindSpore, and torch.optim.SparseAdam. The two differ in
// where epsilon is added. kAdagrad is torch.optim.Adagrad; with epsilon 0 it is MindSpore's. kFtrl
// is MindSpore's nn.FTRL. (On CPU, MindSpore 2.10 leaves
// use_nesterov out, and takes l1 with another sign than its documentation.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "table/spec.h"

namespace holdfast::table {

// The numbers of one step's update of a table.
struct Arguments {
  double learning_rate = 0;
  double weight_decay = 0;
  std::uint64_t update_count = 1;  // kAdam, kAdamW: this update's number, from 1.
  std::uint64_t assigns = 0;       // 1: rows begin with what was added, and with a new state.
  // How many steps with a push the table has seen, this one included. Never begins anew.
  std::uint64_t clock = 0;
  // Rows whose last update has a lower clock are evicted; 0: none.
  std::uint64_t evicts_before = 0;
  bool operator==(const Arguments&) const = default;
};

// Error (kUser): numbers with which an update makes no sense, with the table's name.
[[nodiscard]] Status check(const Spec& spec, const Arguments& arguments);

// The update of one table in one step.
class Update {
 public:
  Update(const Spec& spec, const Arguments& arguments);

  // Brings a row from its old bytes to the new ones, in place. Requires: Spec::row_bytes() bytes at
  // `row`, and Spec::values gradients.
  void apply(std::byte* row, const float* gradients) const;

 private:
  struct Scalars {
    float rate = 0;
    float decay = 0;
    float keep = 1;  // kAdamW: what decay leaves of a value.
    float momentum = 0;
    float rate_momentum = 0;
    float one_minus_beta1 = 0;
    float beta2 = 0;
    float one_minus_beta2 = 0;
    float step_size = 0;
    float correction = 1;
    float epsilon = 0;
    float l1 = 0;
    float two_l2 = 0;
  };
  void apply(float* w, float* state, const float* gradients) const;

  const Spec* spec_;
  bool assigns_;
  Scalars s_;
};

// Writes the optimizer's state of a row that begins.
void begin_state(const Spec& spec, std::byte* row);
// A row's values as float32, and back.
void read_values(const Spec& spec, const std::byte* row, std::span<float> values);
void write_values(const Spec& spec, std::span<const float> values, std::byte* row);

}  // namespace holdfast::table
