// What the tests of this room share: a loop that does not run for ever.
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "io/connection.h"
#include "io/loop.h"
#include "os/testing.h"

namespace holdfast::io {

using os::TemporaryFolder;

// What all processes of a test's job prove.
inline const Membership kMembership{.job = "job", .token = "a token for tests"};

// Runs the loop until someone stops it; fails the test if nobody does.
inline void run_to_stop(Loop& loop) {
  const auto limit = loop.after(std::chrono::seconds(60), [&] {
    ADD_FAILURE() << "nothing happened for a minute";
    loop.stop();
  });
  loop.run();
  loop.cancel(limit);
}

}  // namespace holdfast::io
