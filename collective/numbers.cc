#include "collective/numbers.h"

#include "base/text.h"

namespace holdfast::collective {
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
  if (numbers.location != Location::kHost) {
    return refuse(
        "the numbers lie in memory that no part of this library reaches; copy them to the host's");
  }
  if (numbers.bytes / size_of(numbers.element) != numbers.count) {
    return refuse(cat(numbers.count, " numbers are more than any memory holds"));
  }
  if (numbers.element == Element::kBytes) {
    return refuse("bytes can not be reduced; say what they are");
  }
  const bool of_floats = op == Op::kAverage;
  const bool of_bits = op == Op::kAnd || op == Op::kOr || op == Op::kXor;
  if (is_float(numbers.element) ? !of_bits : !of_floats) return {};
  return refuse(cat("there is no ", name_of(op), " of ", name_of(numbers.element),
                    of_floats ? "; use floats, or a sum" : "; use whole numbers or bool"));
}

}  // namespace holdfast::collective
