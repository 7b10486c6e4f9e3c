// Numbers: a run of numbers of one of the types that a collective can add up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace holdfast::collective {

// What the bytes of a sum are. A new type is one line here, one in Numbers and one in sum.cc.
enum class Element : std::uint8_t { kBytes, kFloat, kDouble, kInt32, kInt64 };

// Whole numbers wrap round on overflow, as unsigned ones do.
struct Numbers {
  Numbers(std::span<float> v) : Numbers(v, Element::kFloat) {}         // NOLINT: implicit
  Numbers(std::span<double> v) : Numbers(v, Element::kDouble) {}       // NOLINT: implicit
  Numbers(std::span<std::int32_t> v) : Numbers(v, Element::kInt32) {}  // NOLINT: implicit
  Numbers(std::span<std::int64_t> v) : Numbers(v, Element::kInt64) {}  // NOLINT: implicit

  std::byte* data;
  std::size_t count;  // Of elements.
  std::size_t bytes;
  Element element;

 private:
  template <class T>
  Numbers(std::span<T> v, Element e)
      : data(reinterpret_cast<std::byte*>(v.data())),
        count(v.size()),
        bytes(v.size_bytes()),
        element(e) {}
};

}  // namespace holdfast::collective
