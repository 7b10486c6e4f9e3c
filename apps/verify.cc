// `holdfast verify`.
#include "apps/commands.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "runtime/agent/agent.h"

namespace holdfast::apps {
namespace {

// A Python program that runs holdfast.verify. If the package is not installed, it takes the one
// beside this program.
constexpr const char* kBecome =
    "import sys\n"
    "sys.path += sys.argv[1:3]\n"
    "try:\n"
    "    from holdfast.verify._course import main\n"
    "except ImportError as error:\n"
    "    sys.exit(f'holdfast: verify needs the Python package of Holdfast ({error}); `pip install "
    ".` "
    "in its source')\n"
    "sys.exit(main(sys.argv[3:]))\n";

}  // namespace

int verify(int argc, const char* const* argv) {
  std::error_code none;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  const std::string built = (folder.parent_path() / "python").string();
  const std::string installed = folder.parent_path().parent_path().string();
  std::vector<const char*> words{"python3", "-c", kBecome, built.c_str(), installed.c_str()};
  words.insert(words.end(), argv, argv + argc);
  words.push_back(nullptr);
  ::execvp(words.front(), const_cast<char* const*>(words.data()));
  std::fprintf(stderr, "holdfast: verify needs python3, which can not be started: %s\n",
               std::strerror(errno));
  return runtime::kExitUsage;
}

}  // namespace holdfast::apps
