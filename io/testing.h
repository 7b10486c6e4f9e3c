// What the tests of this room share: a folder of their own, and a loop that does not run for ever.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "io/loop.h"

namespace holdfast::io {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = (std::filesystem::temp_directory_path() / "holdfast-io-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

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
