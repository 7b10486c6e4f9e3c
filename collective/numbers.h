// Numbers: an array of numbers of one type in memory, and the operations that reduce such arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace holdfast::collective {

// The type of one number. A new type is one line here, one in numbers.cc and one in reduce.cc.
enum class Element : std::uint8_t {
  kFloat32,
  kFloat64,
  kInt32,
  kInt64,
  kFloat16,
  kBfloat16,
  kInt8,
  kUint8,
  kInt16,
  kBool,
  kBytes,  // Carried as they are, never reduced.
};

// How two numbers are reduced to one. Whole numbers wrap around on overflow. If one is NaN, so is
// the result; also for kMin and kMax.
enum class Op : std::uint8_t { kSum, kProduct, kMin, kMax, kAnd, kOr, kXor, kAverage };

// Which memory the numbers lie in. check() refuses any other value.
enum class Location : std::uint8_t { kHost };

[[nodiscard]] constexpr std::size_t size_of(Element element) {  // In bytes.
  constexpr std::size_t kSizes[] = {4, 8, 4, 8, 2, 2, 1, 1, 2, 1, 1};
  return kSizes[static_cast<std::size_t>(element)];
}
[[nodiscard]] constexpr bool is_float(Element e) {
  return e == Element::kFloat32 || e == Element::kFloat64 || e == Element::kFloat16 ||
         e == Element::kBfloat16;
}
[[nodiscard]] const char* name_of(Element element);
[[nodiscard]] const char* name_of(Op op);

struct Numbers {
  Numbers(void* numbers, std::size_t n, Element e, Location where = Location::kHost)
      : data(static_cast<std::byte*>(numbers)),
        count(n),
        bytes(n * size_of(e)),
        element(e),
        location(where) {}
  Numbers(std::span<float> v) : Numbers(v, Element::kFloat32) {}       // NOLINT: implicit
  Numbers(std::span<double> v) : Numbers(v, Element::kFloat64) {}      // NOLINT: implicit
  Numbers(std::span<std::int32_t> v) : Numbers(v, Element::kInt32) {}  // NOLINT: implicit
  Numbers(std::span<std::int64_t> v) : Numbers(v, Element::kInt64) {}  // NOLINT: implicit

  std::byte* data;
  std::size_t count;  // How many numbers.
  std::size_t bytes;
  Element element;
  Location location;

 private:
  template <class T>
  Numbers(std::span<T> v, Element e) : Numbers(v.data(), v.size(), e) {}
};

// Whether numbers of this type can be reduced by `op`, and their memory can be reached. Errors
// (kUser): why not.
[[nodiscard]] Status check(const Numbers& numbers, Op op);

}  // namespace holdfast::collective
