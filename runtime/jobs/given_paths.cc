#include "runtime/jobs/given_paths.h"

#include <cerrno>
#include <filesystem>

#include "base/text.h"
#include "os/draft.h"
#include "os/errors.h"
#include "os/files.h"

namespace holdfast::runtime {
namespace {

Error unusable(std::string_view setting, const std::string& folder, const Error& why) {
  return {Blame::kUser, cat(setting, " is '", folder, "', but ", why.what,
                            ": name a folder that this user can write to, or leave it out")};
}

}  // namespace

Status check_folder(std::string_view setting, const std::string& folder, mode_t mode) {
  if (folder.empty()) return {};
  if (const auto made = os::make_directories(folder, mode); !made) {
    return unusable(setting, folder, made.error());
  }
  // Makes a file: access(2) tells root that it may write even where nobody can.
  const os::Draft trial(folder + "/.holdfast", 0600);
  if (trial.get() >= 0) return {};
  return unusable(setting, folder, os::system_error("no file can be made in it", errno));
}

Result<io::Trace> open_trace(const config::Settings& settings, const std::string& role) {
  auto trace = io::Trace::open_from(settings.trace, role);
  if (!trace) return unusable("HOLDFAST_TRACE", settings.trace, trace.error());
  return trace;
}

Result<std::optional<os::Lifeline>> hold_lifeline(const config::Settings& settings) {
  const std::string& path = settings.lifeline;
  if (path.empty()) return std::optional<os::Lifeline>();
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return Error{Blame::kUser, cat("HOLDFAST_LIFELINE is '", path,
                                   "', but there is no such file: only an agent (msrun) makes it, "
                                   "for a job that runs; unset it")};
  }
  auto lifeline = os::Lifeline::hold(path);
  if (!lifeline) return lifeline.error();
  return std::optional(*std::move(lifeline));
}

}  // namespace holdfast::runtime
