#include <poll.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.h"
#include "io/testing.h"

namespace holdfast::io {
namespace {

TEST(ChildWatch, SeesEveryChildEndOnce) {
  Loop loop;
  constexpr int kChildren = 20;
  std::vector<os::Child> children;
  std::vector<int> codes;
  for (int i = 0; i < kChildren; ++i) {
    auto child = os::spawn({.argv = {"/bin/sh", "-c", cat("exit ", i)}});
    ASSERT_TRUE(child);
    if (i == 0) {  // This child is dead before the loop watches it.
      pollfd poller{child->pidfd.get(), POLLIN, 0};
      ASSERT_EQ(::poll(&poller, 1, 60'000), 1);
    }
    loop.on_exit(child->pidfd.get(), [&](os::Exit exit) {
      codes.push_back(exit.code);
      if (codes.size() == kChildren) loop.stop();
    });
    children.push_back(std::move(*child));
  }
  run_to_stop(loop);
  std::sort(codes.begin(), codes.end());
  for (int i = 0; i < kChildren; ++i) EXPECT_EQ(codes[static_cast<std::size_t>(i)], i);
}

}  // namespace
}  // namespace holdfast::io
