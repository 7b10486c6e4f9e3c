#include "collective/numbers.h"

#include "base/text.h"

namespace holdfast::collective {
namespace {

bool is_float(Element e) {
  return e == Element::kFloat32 || e == Element::kFloat64 || e == Element::kFloat16 ||
         e == Element::kBfloat16;
}

}  // namespace

std::size_t size_of(Element element) {
  constexpr std::size_t kSizes[] = {4, 8, 4, 8, 2, 2, 1, 1, 2, 1, 1};
  return kSizes[static_cast<std::size_t>(element)];
}

const char* name_of(Element element) {
  constexpr const char* kNames[] = {"float32", "float64", "int32", "int64", "float16", "bfloat16",
                                    "int8",    "uint8",   "int16", "bool",  "bytes"};
  return kNames[static_cast<std::size_t>(element)];
}

const char* name_of(Op op) {
  constexpr const char* kNames[] = {"sum",         "product",    "minimum",     "maximum",
                                    "bitwise and", "bitwise or", "bitwise xor", "average"};
  return kNames[static_cast<std::size_t>(op)];
}

Status check(const Numbers& numbers, Op op) {
  const auto refuse = [](std::string what) { return Error{Blame::kUser, std::move(what)}; };
  const Element element = numbers.element;
  if (numbers.location != Location::kHost) {
    return refuse(
        "the numbers lie in memory that no part of this library reaches; copy them to the "
        "host's");
  }
  if (element == Element::kBytes) return refuse("bytes can not be reduced; say what they are");
  const bool of_bits = op == Op::kAnd || op == Op::kOr || op == Op::kXor;
  if (of_bits && is_float(element)) {
    return refuse(
        cat("there is no ", name_of(op), " of ", name_of(element), "; use whole numbers or bool"));
  }
  if (op == Op::kAverage && !is_float(element)) {
    return refuse(cat("there is no average of ", name_of(element), "; use floats, or a sum"));
  }
  return {};
}

}  // namespace holdfast::collective
