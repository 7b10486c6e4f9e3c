#include "os/heeded.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace holdfast::os {
namespace {

// The exit code of a child that runs this, or 128 + the signal that has ended it. It gets SIGTERM
// from this process while it waits for its pipe, which is closed after that.
int code_of(const std::function<void()>& prepare) {
  int ready[2];
  int go[2];
  EXPECT_EQ(::pipe(ready), 0);
  EXPECT_EQ(::pipe(go), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(go[1]);
    prepare();
    char byte = 0;
    (void)!::write(ready[1], &byte, 1);
    (void)!::read(go[0], &byte, 1);
    ::_exit(7);
  }
  ::close(go[0]);
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(child, SIGTERM);
  ::close(go[1]);
  for (const int end : {ready[0], ready[1]}) ::close(end);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(Heeded, ASignalOfAnyoneElseDoesNothing) {
  EXPECT_EQ(code_of([] { heed_only(1, {SIGTERM}); }), 7);
}

TEST(Heeded, ThatOfTheSenderEndsTheProcess) {
  const pid_t self = ::getpid();
  EXPECT_EQ(code_of([self] { heed_only(self, {SIGTERM}); }), 128 + SIGTERM);
}

TEST(Heeded, AProgramsOwnHandlerStays) {
  EXPECT_EQ(code_of([] {
              ::signal(SIGTERM, [](int) { ::_exit(9); });
              heed_only(1, {SIGTERM});
            }),
            9);
}

// Those of multiprocessing, which are ended by SIGTERM.
TEST(Heeded, AForkedProcessHasTheDefaultAction) {
  const int code = code_of([] {
    heed_only(1, {SIGTERM});
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
    ::kill(child, SIGTERM);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFSIGNALED(status)) ::_exit(1);
  });
  EXPECT_EQ(code, 7);
}

}  // namespace
}  // namespace holdfast::os
