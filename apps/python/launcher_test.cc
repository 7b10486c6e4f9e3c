// PythonLauncher: the command for a program, with and without a fork server, and its environment.
#include "apps/python/launcher.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace holdfast::apps {
namespace {

using runtime::Words;

TEST(PythonLauncher, ExecutesAProgramWhateverItsNameIs) {
  const PythonLauncher launcher(Forked::kNone);
  EXPECT_FALSE(launcher.stands_in());
  const auto command = launcher.command({"sh", "x.py"}, "/bin");
  ASSERT_TRUE(command) << command.error().what;
  EXPECT_EQ(*command, (Words{"/bin/sh", "x.py"}));
}

TEST(PythonLauncher, RefusesAScriptThatIsNotThere) {
  const auto command = PythonLauncher(Forked::kNone).command({"/nowhere/x.py"}, "/bin");
  ASSERT_FALSE(command);
  EXPECT_EQ(command.error().what, "there is no readable program /nowhere/x.py");
}

TEST(PythonLauncher, TellsHoldfastsRefusalsFromOtherExceptions) {
  const PythonLauncher launcher(Forked::kNone);
  EXPECT_TRUE(launcher.is_final("holdfast._errors.UserError: no"));
  EXPECT_FALSE(launcher.is_final("holdfast._errors.PeerError: no"));
  EXPECT_FALSE(launcher.is_final(""));
}

TEST(PythonLauncher, PutsAStandInBeforeAProgramThatIsToBeForked) {
  const PythonLauncher launcher(Forked::kFirst);
  EXPECT_TRUE(launcher.stands_in());
  const auto command = launcher.command({"sh", "x"}, "/bin");
  ASSERT_TRUE(command) << command.error().what;
  ASSERT_EQ(command->size(), 5U);
  EXPECT_TRUE(command->front().ends_with("/nursling"));
  EXPECT_EQ(Words(command->begin() + 2, command->end()), (Words{"first", "/bin/sh", "x"}));
  const auto missing = launcher.command({"no-such-program"}, "/bin");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().what.find("no-such-program"), std::string::npos);
}

TEST(PythonLauncher, TellsWhichOutputIsTheLogAndReplacesWhatAnotherLauncherTold) {
  Words environment = {"HOLDFAST_PYTHON_LOG=7:7", "A=b"};
  PythonLauncher(Forked::kNone).tell(environment, {"/dev/null", "5"});
  std::sort(environment.begin(), environment.end());
  ASSERT_EQ(environment.size(), 3U);
  EXPECT_EQ(environment[0], "A=b");
  EXPECT_NE(environment[1], "HOLDFAST_PYTHON_LOG=7:7");
  EXPECT_EQ(environment[2], "HOLDFAST_PYTHON_PREDECESSOR=5");
}

}  // namespace
}  // namespace holdfast::apps
