#include "table/initial.h"

#include <algorithm>
#include <cmath>

#include "base/digest.h"
#include "base/prng.h"
#include "table/rules.h"

namespace holdfast::table {
namespace {

// Horner's rule: c[0] x^(n-1) + ... + c[n-1].
template <std::size_t n>
double polynomial(const double (&c)[n], double x) {
  double sum = 0;
  for (const double each : c) sum = sum * x + each;
  return sum;
}

// The natural logarithm, for 0 < x < 1: x = m 2^e with m in [0.5, 1), and a series in
// (m - 1) / (m + 1), which is at most a third.
double logarithm(double x) {
  int exponent = 0;
  const double m = std::frexp(x, &exponent);  // Exact, so the same everywhere.
  const double t = (m - 1) / (m + 1);
  double sum = 0;
  for (int k = 33; k >= 1; k -= 2) sum = sum * (t * t) + 1.0 / k;
  return 2 * t * sum + exponent * 0.693147180559945309417;
}

// In (0, 1), from 53 random bits: the middles of 2^53 equal parts.
double open_unit(std::uint64_t bits) {
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}

}  // namespace

// Acklam's rational approximations ("An algorithm for computing the inverse normal cumulative
// distribution function", 2003).
double normal_quantile(double p) {
  constexpr double kA[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                           1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double kB[] = {-5.447609879822406e+01, 1.615858368580409e+02,  -1.556989798598866e+02,
                           6.680131188771972e+01,  -1.328068155288572e+01, 1};
  constexpr double kC[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                           -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double kD[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                           3.754408661907416e+00, 1};
  constexpr double kTail = 0.02425;
  if (p > 1 - kTail) return -normal_quantile(1 - p);
  if (p < kTail) {
    const double q = std::sqrt(-2 * logarithm(p));
    return polynomial(kC, q) / polynomial(kD, q);
  }
  const double q = p - 0.5;
  return polynomial(kA, q * q) * q / polynomial(kB, q * q);
}

Beginning::Beginning(const Spec& spec)
    : spec_(spec), seed_(derive(spec.seed, digest(std::as_bytes(std::span(spec.name))))) {}

void Beginning::fill(std::uint64_t key, std::span<float> values) const {
  const auto [kind, a, b] = spec_.initial;
  Prng random(derive(seed_, key));
  for (float& value : values) {
    const double u = kind == Initial::Kind::kConstant ? 0 : open_unit(random.next());
    value = static_cast<float>(kind == Initial::Kind::kNormal    ? a + b * normal_quantile(u)
                               : kind == Initial::Kind::kUniform ? a + (b - a) * u
                                                                 : a);
  }
  if (spec_.type == Type::kFloat32) return;
  std::byte row[kMostValues * sizeof(float)];
  write_values(spec_, values, row);
  read_values(spec_, row, values);
}

}  // namespace holdfast::table
