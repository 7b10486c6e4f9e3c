#include "table/spec.h"

#include <gtest/gtest.h>

namespace holdfast::table {
namespace {

using Rule = Optimizer::Rule;

Spec good() {
  return {.name = "users of a shop",
          .values = 16,
          .type = Type::kBfloat16,
          .optimizer = {.rule = Rule::kFtrl, .l1 = 0.1, .initial_accumulator = 0.1},
          .initial = {Initial::Kind::kUniform, -0.1, 0.3},
          .seed = 7};
}

std::string error_of(const Spec& spec) {
  const Status status = check(std::vector{spec});
  return status ? "" : status.error().what;
}

TEST(Spec, KnowsWhereAStateLies) {
  Spec spec = good();
  EXPECT_EQ(spec.row_bytes(), 32U + 128U);
  spec.values = 3;
  EXPECT_EQ(spec.state_offset(), 8U) << "the state is aligned";
  spec.optimizer.rule = Rule::kRowAdagrad;
  EXPECT_EQ(spec.row_bytes(), 12U);
}

TEST(Spec, IsTextAndBack) {
  const std::vector<Spec> specs = {good(), {.name = "b", .values = 1}};
  std::vector<Spec> back;
  ASSERT_TRUE(from_text(to_text(specs), back));
  EXPECT_EQ(back, specs);
  EXPECT_FALSE(from_text(to_text(specs) + " ", back));
  EXPECT_FALSE(from_text("holdfast tables\n1\nx\n4 9 0 0 0 0 0", back));
  EXPECT_FALSE(from_text("", back));
}

TEST(Spec, ThatCanNotBeIsRefusedByName) {
  EXPECT_EQ(error_of(good()), "");
  Spec bad = good();
  bad.values = 4097;
  EXPECT_EQ(error_of(bad), "table users of a shop: a row has 1 to 4096 values, not 4097");
  bad = good();
  bad.name = "";
  EXPECT_EQ(error_of(bad), "table without a name: a name has 1 to 255 bytes, and one line");
  bad.name = "caf\xe9";
  EXPECT_EQ(error_of(bad), "a table's name has to be UTF-8");
  bad.name = "caf\xc3\xa9";
  EXPECT_EQ(error_of(bad), "");
  bad = good();
  bad.optimizer.beta1 = 1;
  EXPECT_EQ(error_of(bad), "table users of a shop: its optimizer's beta1 can not be 1");
  bad = good();
  bad.optimizer.epsilon = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(error_of(bad).find("epsilon"), std::string::npos);
  bad = good();
  bad.initial.b = -1;
  EXPECT_NE(error_of(bad).find("a range ascends"), std::string::npos);
  const Status twice = check(std::vector{good(), good()});
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().what, "table users of a shop: another table has the same name");
  EXPECT_TRUE(check(std::vector<Spec>{}));
  EXPECT_FALSE(check(std::vector<Spec>(kMostTables + 1, good())));
}

TEST(Spec, NamesTheFirstDifference) {
  const auto differ = [](auto change) {
    Spec other = good();
    change(other);
    return difference(std::vector{good()}, std::vector{other});
  };
  EXPECT_EQ(differ([](Spec&) {}), "");
  EXPECT_EQ(differ([](Spec& s) { s.values = 32; }),
            "table users of a shop has 16 values in a row there and 32 here");
  EXPECT_EQ(differ([](Spec& s) { s.type = Type::kFloat32; }),
            "table users of a shop has rows of bfloat16 there and float32 here");
  EXPECT_EQ(differ([](Spec& s) { s.optimizer.rule = Rule::kAdam; }),
            "table users of a shop has the optimizer FTRL there and Adam here");
  EXPECT_EQ(differ([](Spec& s) { s.optimizer.l1 = 0.2; }),
            "table users of a shop has l1 0.1 there and 0.2 here");
  EXPECT_EQ(differ([](Spec& s) { s.seed = 8; }),
            "table users of a shop has the seed 7 there and 8 here");
  EXPECT_EQ(differ([](Spec& s) { s.initial.a = 0; }),
            "table users of a shop has rows that begin with other values");
  EXPECT_EQ(difference(std::vector{good()}, std::vector{good(), good()}),
            "there are 1 tables there and 2 here");
}

}  // namespace
}  // namespace holdfast::table
