#include "train/terms.h"

#include <gtest/gtest.h>

#include <vector>

namespace holdfast::train {
namespace {

constexpr Terms kTerms = {.samples = 1000,
                          .batch = 16,
                          .shuffle_seed = 7,
                          .epochs = 3,
                          .max_steps = 90,
                          .update = {.learning_rate = 0.1, .momentum = 0.9}};

TEST(Terms, OfAllRanksAlikeGiveNoSentence) {
  EXPECT_EQ(disagreement(std::vector(4, kTerms)), "");
  EXPECT_EQ(disagreement(std::vector(1, kTerms)), "");
}

TEST(Terms, ThatDifferAreNamedWithTheRankAndBothValues) {
  struct Case {
    void (*change)(Terms&);
    const char* says;
  };
  const Case cases[] = {
      {[](Terms& t) { t.samples = 999; }, "samples in the data set is 999 in rank 2 and 1000 in"},
      {[](Terms& t) { t.batch = 8; }, "the batch is 8 in rank 2 and 16 in rank 0"},
      {[](Terms& t) { t.shuffle_seed = 8; }, "the shuffle_seed is 8 in rank 2 and 7 in rank 0"},
      {[](Terms& t) { t.epochs = 4; }, "the number of epochs is 4 in rank 2 and 3 in rank 0"},
      {[](Terms& t) { t.max_steps = 5; }, "the max_steps is 5 in rank 2 and 90"},
      {[](Terms& t) { t.update.learning_rate = 0.01; },
       "the learning rate is 0.01 in rank 2 and 0.1 in"},
      {[](Terms& t) { t.update.weight_decay = 0.01; },
       "the weight_decay is 0.01 in rank 2 and 0 in"},
      {[](Terms& t) { t.update.momentum = 0.5; },
       "the momentum is 0.5 in rank 2 and 0.9 in rank 0"},
      {[](Terms& t) { t.update.beta1 = 0.8; }, "the beta1 is 0.8 in rank 2"},
      {[](Terms& t) { t.update.beta2 = 0.8; }, "the beta2 is 0.8 in rank 2"},
      {[](Terms& t) { t.update.epsilon = 1e-7; }, "the epsilon is 1e-07 in rank 2"},
      {[](Terms& t) { t.update.clip_norm = 2; }, "the clip_norm is 2 in rank 2 and 0 in rank 0"},
  };
  for (const Case& each : cases) {
    std::vector ranks(4, kTerms);
    each.change(ranks[2]);
    EXPECT_NE(disagreement(ranks).find(each.says), std::string::npos) << disagreement(ranks);
  }
}

}  // namespace
}  // namespace holdfast::train
