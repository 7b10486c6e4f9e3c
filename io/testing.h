// What the tests of this room share: a loop that does not run for ever.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <string_view>

#include "io/connection.h"
#include "io/loop.h"
#include "os/fd.h"
#include "os/testing.h"

namespace holdfast::io {

using os::TemporaryFolder;

// The membership of all processes in a test's job.
inline constexpr const char* kToken = "a token for tests";
inline const Membership kMembership{.job = "job", .token = kToken};

// Runs the loop until someone stops it; fails the test if nobody does.
inline void run_to_stop(Loop& loop) {
  const auto limit = loop.after(std::chrono::seconds(60), [&] {
    ADD_FAILURE() << "nothing happened for a minute";
    loop.stop();
  });
  loop.run();
  loop.cancel(limit);
}

// A stranger: connects to this port of this host, and sends `bytes`.
inline os::Fd stranger_at(std::uint16_t port, std::string_view bytes) {
  os::Fd raw = os::connected_to(port);
  EXPECT_TRUE(raw);
  EXPECT_EQ(::send(raw.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  return raw;
}

}  // namespace holdfast::io
