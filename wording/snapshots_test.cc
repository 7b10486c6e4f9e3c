#include "wording/snapshots.h"

#include <gtest/gtest.h>

#include <string>

namespace holdfast::wording {
namespace {

TEST(Programs, AreOneLine) {
  EXPECT_EQ(command_line("python\ntrain.py\n--lr\n1\n"), "python train.py --lr 1");
  EXPECT_EQ(command_line("a\x1b[31m"), "a?[31m");
  EXPECT_EQ(command_line(""), "");
}

TEST(Programs, DifferInTheWordsThatAreNamed) {
  const std::string was = "python\ntrain.py\n--lr\n1\nlast\n";
  EXPECT_EQ(change_of_program(was, was), "");
  EXPECT_EQ(change_of_program(was, "python\ntrain.py\n--lr\n2\nlast\n"), "`--lr 2` was `--lr 1`");
  EXPECT_EQ(change_of_program(was, "python\nother.py\n--lr\n1\nlast\n"),
            "`other.py` was `train.py`");
  EXPECT_EQ(change_of_program(was, was + "--more\n"), "`--more` is new");
  EXPECT_EQ(change_of_program(was, "python\ntrain.py\nlast\n"), "`--lr 1` is left out");
  EXPECT_EQ(change_of_program("a\n-x\n-x\n", "a\n-x\n"), "`-x` is left out");
  EXPECT_EQ(change_of_program("", "a\n"), "`a` is new");
}

// A manifest may be anybody's.
TEST(Programs, MayHoldAnything) {
  EXPECT_EQ(change_of_program("\x1b[31m\n\n", "a"), "`a` was `?[31m `");
  EXPECT_LT(change_of_program(std::string(100'000, 'x'), "a").size(), 300U);
}

}  // namespace
}  // namespace holdfast::wording
