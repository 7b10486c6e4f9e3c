#include "train/terms.h"

#include <bit>
#include <charconv>
#include <cstddef>
#include <utility>

#include "base/text.h"

namespace holdfast::train {
namespace {

constexpr std::pair<const char*, std::uint64_t Terms::*> kWholes[] = {
    {"number of samples in the data set", &Terms::samples},
    {"batch", &Terms::batch},
    {"shuffle_seed", &Terms::shuffle_seed},
    {"number of epochs", &Terms::epochs},
    {"max_steps", &Terms::max_steps}};

constexpr std::pair<const char*, double arena::UpdateArguments::*> kReals[] = {
    {"learning rate", &arena::UpdateArguments::learning_rate},
    {"weight_decay", &arena::UpdateArguments::weight_decay},
    {"momentum", &arena::UpdateArguments::momentum},
    {"beta1", &arena::UpdateArguments::beta1},
    {"beta2", &arena::UpdateArguments::beta2},
    {"epsilon", &arena::UpdateArguments::epsilon},
    {"clip_norm", &arena::UpdateArguments::clip_norm}};

std::string shown(double value) {  // With as many digits as distinguish it from all other doubles.
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
    for (const auto& [name, value] : kReals) {  // Compares bits, so that a NaN equals itself.
      const double mine = here.update.*value;
      const double other = first.update.*value;
      if (std::bit_cast<std::uint64_t>(mine) == std::bit_cast<std::uint64_t>(other)) continue;
      return sentence(name, rank, shown(mine), shown(other));
    }
  }
  return {};
}

}  // namespace holdfast::train
