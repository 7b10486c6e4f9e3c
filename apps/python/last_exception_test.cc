#include "apps/python/launcher.h"

#include <gtest/gtest.h>

namespace holdfast::apps {
namespace {

TEST(LastException, IsTheOneThatTheTracebackNames) {
  EXPECT_EQ(last_exception("step 1\nTraceback (most recent call last):\n"
                           "  File \"train.py\", line 3, in <module>\n"
                           "    raise ValueError('no data')\nValueError: no data\n"),
            "ValueError: no data");
}

TEST(LastException, IsTheLastOfSeveral) {
  EXPECT_EQ(last_exception("Traceback (most recent call last):\n  File \"a.py\", line 1\n"
                           "KeyError: 'a'\n\n"
                           "During handling of the above exception, another exception occurred:\n\n"
                           "Traceback (most recent call last):\n  File \"a.py\", line 3\n"
                           "    f()\n    ~^^\nmy.module.Problem\nsaid at exit\n"),
            "my.module.Problem");
}

TEST(LastException, IsReadAsPyTorchWritesIt) {
  EXPECT_EQ(last_exception("[rank1]: Traceback (most recent call last):\n"
                           "[rank1]:   File \"a.py\", line 1, in <module>\n"
                           "[rank1]: RuntimeError: a[2] is out of range\n"),
            "RuntimeError: a[2] is out of range");
}

TEST(LastException, IsThatOfAWrongSyntaxToo) {
  EXPECT_EQ(last_exception("  File \"a.py\", line 1\n    (\n    ^\n"
                           "SyntaxError: '(' was never closed\n"),
            "SyntaxError: '(' was never closed");
}

TEST(LastException, LeavesAddressesOut) {
  EXPECT_EQ(last_exception("Traceback (most recent call last):\n  File \"a.py\", line 1\n"
                           "TypeError: <object at 0x7f12ab> is none\n"),
            "TypeError: <object at 0x> is none");
}

TEST(LastException, GoesOnToTheLineThatSaysWhat) {
  EXPECT_EQ(last_exception("Traceback (most recent call last):\n  File \"a.py\", line 1\n"
                           "RuntimeError: \n\nThe shapes differ.\n"),
            "RuntimeError: The shapes differ.");
}

TEST(LastException, IsNoneWhereNothingIsSaidOfOne) {
  EXPECT_EQ(last_exception(""), "");
  EXPECT_EQ(last_exception("ValueError: said by the program itself\n"), "");
  EXPECT_EQ(last_exception("Traceback (most recent call last):\n  File \"a.py\", line"), "");
}

TEST(LastException, IsNoneWhereItTellsOfAnotherProcess) {
  EXPECT_EQ(last_exception("Traceback (most recent call last):\n  File \"a.py\", line 1\n"
                           "holdfast._errors.WorldError: no scheduler answers\n"),
            "");
}

}  // namespace
}  // namespace holdfast::apps
