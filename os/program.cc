#include "os/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/text.h"

namespace holdfast::os {
namespace {

bool is_folder(const std::string& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
}

// If the interpreter of a script is missing, the kernel says that the script is missing.
Result<std::string> with_interpreter(const std::string& script) {
  std::ifstream file(script);
  std::string line;
  if (!std::getline(file, line) || !line.starts_with("#!")) return script;
  const auto start = std::min(line.find_first_not_of(" \t", 2), line.size());
  const auto name = line.substr(start, line.find_first_of(" \t", start) - start);
  const bool dos = line.ends_with('\r');  // An argument with it is no better: `env python3\r`.
  if (name.empty() || (!dos && ::access(name.c_str(), X_OK) == 0)) return script;
  return Error{Blame::kUser,
               dos ? cat(script,
                         " has line ends of Windows, so that its interpreter is not found; "
                         "take the carriage returns out (`sed -i 's/\\r$//'`)")
                   : cat(script, " is a script for ", name,
                         ", which is not there or not executable; check its first line")};
}

}  // namespace

Result<std::string> find_program(const std::string& name, std::string_view path) {
  const auto fits = [](const std::string& file) {
    return ::access(file.c_str(), X_OK) == 0 && !is_folder(file);
  };
  const auto refuse = [](const std::string& file) {
    const char* why = is_folder(file) ? " is a folder, not a program; name the program in it"
                                      : " is not executable; try `chmod +x`";
    return Error{Blame::kUser, file + why};
  };
  if (name.find('/') != std::string::npos) {
    if (fits(name)) return with_interpreter(name);
    if (::access(name.c_str(), F_OK) == 0) return refuse(name);
    return Error{Blame::kUser, cat("there is no program ", name, "; check the path")};
  }
  std::string found;  // The first that has the name but is no program.
  for (std::size_t start = 0; !name.empty() && start <= path.size();) {
    const std::size_t end = std::min(path.find(':', start), path.size());
    const std::string_view folder = path.substr(start, end - start);
    const std::string file = cat(folder.empty() ? "." : folder, '/', name);
    if (fits(file)) return with_interpreter(file);
    if (found.empty() && ::access(file.c_str(), F_OK) == 0) found = file;
    start = end + 1;
  }
  if (!found.empty()) return refuse(found);
  return Error{Blame::kUser, cat("there is no program '", name,
                                 "' in the folders of PATH; install it, or "
                                 "give its path (./",
                                 name, ")")};
}

}  // namespace holdfast::os
