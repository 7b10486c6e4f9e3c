// What tests share: a folder that goes with its test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace holdfast::os {

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& parent = std::filesystem::temp_directory_path()) {
    path_ = parent + "/holdfast-test-XXXXXX";
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

}  // namespace holdfast::os
