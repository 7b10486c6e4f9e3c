#include "table/rules.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/text.h"

namespace holdfast::table {
namespace {

using Rule = Optimizer::Rule;

// The arrays never overlap, so the loop after this may be vectorised.
#ifdef __clang__
#define HF_NO_ALIAS _Pragma("clang loop vectorize(assume_safety)")
#else
#define HF_NO_ALIAS _Pragma("GCC ivdep")
#endif

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // Stays a NaN.
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// base^count, by squarings: the last bits of pow() depend on the processor.
double power_of(double base, std::uint64_t count) {
  double result = 1;
  for (; count > 0; count /= 2, base *= base) {
    if (count % 2 == 1) result *= base;
  }
  return result;
}

}  // namespace

Status check(const Spec& spec, const Arguments& a) {
  const Rule rule = spec.optimizer.rule;
  const auto refused = [&](const char* what) {
    return Error{Blame::kUser, cat("table ", spec.name, ": ", what)};
  };
  if (a.assigns == 1) return {};
  if (a.assigns > 1) return refused("its update is of a kind that is unknown here");
  const auto rate = static_cast<float>(a.learning_rate);
  if (!std::isfinite(rate) || rate < 0) return refused("the learning rate is no number from 0 on");
  if (!std::isfinite(static_cast<float>(a.weight_decay)) || a.weight_decay < 0) {
    return refused("the weight decay is no number from 0 on");
  }
  if (rule == Rule::kFtrl && rate == 0) return refused("FTRL divides by the learning rate: not 0");
  const bool counts = rule == Rule::kAdam || rule == Rule::kAdamW;
  if (counts && a.update_count == 0) return refused("Adam's updates are counted from 1");
  return {};
}

Update::Update(const Spec& spec, const Arguments& a) : spec_(&spec), assigns_(a.assigns == 1) {
  if (assigns_) return;
  const Optimizer& o = spec.optimizer;
  const double correction1 = 1 - power_of(o.beta1, a.update_count);
  const double correction2 = std::sqrt(1 - power_of(o.beta2, a.update_count));
  const bool torch = o.formula == Formula::kTorch;
  const double step = a.learning_rate * (torch ? 1 : correction2) / correction1;
  s_ = {.rate = static_cast<float>(a.learning_rate),
        .decay = static_cast<float>(o.rule == Rule::kAdamW ? 0 : a.weight_decay),
        .keep = static_cast<float>(1 - a.learning_rate * a.weight_decay),
        .momentum = static_cast<float>(o.momentum),
        .rate_momentum = static_cast<float>(a.learning_rate * o.momentum),
        .one_minus_beta1 = static_cast<float>(1 - o.beta1),
        .beta2 = static_cast<float>(o.beta2),
        .one_minus_beta2 = static_cast<float>(1 - o.beta2),
        .step_size = static_cast<float>(step),
        .correction = static_cast<float>(torch ? correction2 : 1),
        .epsilon = static_cast<float>(o.epsilon),
        .l1 = static_cast<float>(o.l1),
        .two_l2 = static_cast<float>(2 * o.l2)};
}

void Update::apply(float* __restrict w, float* __restrict state,
                   const float* __restrict gradients) const {
  const std::size_t n = spec_->values;
  const Scalars s = s_;
  const Optimizer& o = spec_->optimizer;
  const bool torch = o.formula == Formula::kTorch;
  // Adding 0·w would turn an infinite value's gradient into NaN, and -0 into 0.
  const auto gradient = [&](std::size_t i) {
    return s.decay == 0 ? gradients[i] : gradients[i] + s.decay * w[i];
  };
  switch (o.rule) {
    case Rule::kSgd:
      HF_NO_ALIAS
      for (std::size_t i = 0; i < n; ++i) w[i] = w[i] - s.rate * gradient(i);
      return;
    case Rule::kMomentum:
      HF_NO_ALIAS
      for (std::size_t i = 0; i < n; ++i) {
        const float g = gradient(i);
        const float m = s.momentum * state[i] + g;
        state[i] = m;
        const float step = !o.nesterov ? s.rate * m
                           : torch     ? s.rate * (g + s.momentum * m)
                                       : s.rate * g + s.rate_momentum * m;
        w[i] = w[i] - step;
      }
      return;
    case Rule::kAdagrad:
      HF_NO_ALIAS
      for (std::size_t i = 0; i < n; ++i) {
        const float g = gradient(i);
        state[i] = state[i] + g * g;
        w[i] = w[i] - s.rate * g / (std::sqrt(state[i]) + s.epsilon);
      }
      return;
    case Rule::kRowAdagrad: {
      double squares = 0;
      for (std::size_t i = 0; i < n; ++i) squares += double{gradient(i)} * double{gradient(i)};
      state[0] = state[0] + static_cast<float>(squares / static_cast<double>(n));
      const float root = std::sqrt(state[0]) + s.epsilon;
      HF_NO_ALIAS
      for (std::size_t i = 0; i < n; ++i) w[i] = w[i] - s.rate * gradient(i) / root;
      return;
    }
    case Rule::kAdam:
    case Rule::kAdamW: {
      const float keep = o.rule == Rule::kAdamW ? s.keep : 1;
      HF_NO_ALIAS
      for (std::size_t i = 0; i < n; ++i) {
        const float g = gradient(i);
        const float m = state[i] + s.one_minus_beta1 * (g - state[i]);
        const float v = s.beta2 * state[n + i] + (s.one_minus_beta2 * g) * g;
        state[i] = m;
        state[n + i] = v;
        w[i] = w[i] * keep - s.step_size * m / (std::sqrt(v) / s.correction + s.epsilon);
      }
      return;
    }
    case Rule::kFtrl:
      for (std::size_t i = 0; i < n; ++i) {
        const float g = gradient(i);
        const float before = state[i];
        const float after = before + g * g;
        const float root = std::sqrt(after);
        const float z = state[n + i] + g - (root - std::sqrt(before)) / s.rate * w[i];
        state[i] = after;
        state[n + i] = z;
        const float toward = z > 0 ? s.l1 - z : -s.l1 - z;
        w[i] = std::abs(z) > s.l1 ? toward / (root / s.rate + s.two_l2) : 0.0F;
      }
      return;
  }
}

void Update::apply(std::byte* row, const float* gradients) const {
  if (assigns_) {
    write_values(*spec_, {gradients, spec_->values}, row);
    return begin_state(*spec_, row);
  }
  auto* const state = reinterpret_cast<float*>(row + spec_->state_offset());
  if (spec_->type == Type::kFloat32) return apply(reinterpret_cast<float*>(row), state, gradients);
  float values[kMostValues];
  const std::span wide(values, spec_->values);
  read_values(*spec_, row, wide);
  apply(values, state, gradients);
  write_values(*spec_, wide, row);
}

void begin_state(const Spec& spec, std::byte* row) {
  using enum Optimizer::Rule;
  auto* const state = reinterpret_cast<float*>(row + spec.state_offset());
  const Rule rule = spec.optimizer.rule;
  const auto first = static_cast<float>(spec.optimizer.initial_accumulator);
  const bool accumulates = rule == kAdagrad || rule == kRowAdagrad || rule == kFtrl;
  for (std::size_t i = 0; i < spec.state_floats(); ++i) {
    state[i] = accumulates && i < spec.values ? first : 0.0F;
  }
}

void read_values(const Spec& spec, const std::byte* row, std::span<float> values) {
  if (spec.type == Type::kFloat32) {
    std::memcpy(values.data(), row, spec.value_bytes());
    return;
  }
  const auto* const narrow = reinterpret_cast<const std::uint16_t*>(row);
  for (std::size_t i = 0; i < spec.values; ++i) values[i] = from_bfloat16(narrow[i]);
}

void write_values(const Spec& spec, std::span<const float> values, std::byte* row) {
  if (spec.type == Type::kFloat32) {
    std::memcpy(row, values.data(), spec.value_bytes());
    return;
  }
  auto* const narrow = reinterpret_cast<std::uint16_t*>(row);
  for (std::size_t i = 0; i < spec.values; ++i) narrow[i] = to_bfloat16(values[i]);
}

}  // namespace holdfast::table
