#include "train/terms.h"

#include <bit>
#include <charconv>
#include <cstddef>

#include "base/text.h"

namespace holdfast::train {
namespace {

struct Whole {
  const char* name;
  std::uint64_t Terms::*value;
};
constexpr Whole kWholes[] = {{"number of samples in the data set", &Terms::samples},
                             {"batch", &Terms::batch},
                             {"shuffle_seed", &Terms::shuffle_seed},
                             {"number of epochs", &Terms::epochs},
                             {"max_steps", &Terms::max_steps}};

struct Real {
  const char* name;
  double Terms::*value;
};
constexpr Real kReals[] = {{"learning rate", &Terms::learning_rate},
                           {"weight_decay", &Terms::weight_decay},
                           {"momentum", &Terms::momentum},
                           {"beta1", &Terms::beta1},
                           {"beta2", &Terms::beta2},
                           {"epsilon", &Terms::epsilon},
                           {"clip_norm", &Terms::clip_norm}};

std::string shown(double value) {  // As many digits as tell it from every other number.
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string sentence(const char* name, std::size_t rank, const std::string& here,
                     const std::string& first) {
  return cat("the ranks do not train alike: the ", name, " is ", here, " in rank ", rank, " and ",
             first, " in rank 0; start every rank with the same data, options and optimizer");
}

}  // namespace

std::string disagreement(std::span<const Terms> ranks) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const Terms& here = ranks[rank];
    const Terms& first = ranks[0];
    for (const auto& [name, value] : kWholes) {
      if (here.*value == first.*value) continue;
      return sentence(name, rank, std::to_string(here.*value), std::to_string(first.*value));
    }
    for (const auto& [name, value] : kReals) {  // Bits: a rate that is no number equals itself.
      if (std::bit_cast<std::uint64_t>(here.*value) == std::bit_cast<std::uint64_t>(first.*value)) {
        continue;
      }
      return sentence(name, rank, shown(here.*value), shown(first.*value));
    }
  }
  return {};
}

}  // namespace holdfast::train
