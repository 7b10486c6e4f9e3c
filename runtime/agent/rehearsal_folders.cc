#include "runtime/agent/rehearsal_folders.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "core/agent/rehearsals.h"
#include "io/loop.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/folder.h"
#include "os/idle.h"

namespace holdfast::runtime {
namespace {

std::string name_of(const std::string& place) {
  return cat("rehearsal-", place);
}

void remove_from(const std::string& directory, const std::string& name) {
  if (const auto folder = os::Folder::open(directory); folder && *folder) {
    (void)folder->remove(name);  // What is left goes with the job's folder.
  }
}

}  // namespace

RehearsalFolders::RehearsalFolders(std::string job_directory,
                                   const std::vector<std::string>& places)
    : directory_(std::move(job_directory)) {
  for (const auto& name : os::names_in(directory_)) {
    for (const auto& place : places) {
      // The second is one that was being removed.
      if (name == name_of(place) || name.starts_with(name_of(place) + '.')) remove(name);
    }
  }
}

RehearsalFolders::~RehearsalFolders() {
  for (auto& removal : removals_) {
    removal->hurries = true;
    removal->thread.join();
  }
}

Status RehearsalFolders::make(const std::string& place, bool goes_on) {
  if (!goes_on) remove(name_of(place));
  const auto folder = os::Folder::open(directory_);
  if (!folder) return folder.error();
  const auto made = folder->make_sub(name_of(place));
  return made ? Status{} : Status{made.error()};
}

std::optional<std::string> RehearsalFolders::take(const std::string& place) {
  std::optional<std::string> verdict;
  const std::string path = cat(directory_, '/', name_of(place), "/verdict");
  if (const auto file = os::open_own_file(path, O_RDONLY); file && *file) {
    std::string bytes(agent::kMostVerdictBytes + 1, '\0');  // One more shows that it is too long.
    const ssize_t got = ::read(file->get(), bytes.data(), bytes.size());
    bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    verdict = std::move(bytes);
  }
  if (!verdict || !verdict->starts_with(wire::kAgain)) remove(name_of(place));
  return verdict;
}

// The name is free at once. A recovery, for which the rehearsal may have been ended, goes before
// the memory of its files.
void RehearsalFolders::remove(const std::string& name) {
  std::erase_if(removals_, [](const auto& old) {
    if (!old->done) return false;
    old->thread.join();
    return true;
  });
  const std::string gone = cat(name, ".gone-", ::getpid(), '-', removed_++);
  if (::rename(cat(directory_, '/', name).c_str(), cat(directory_, '/', gone).c_str()) != 0) return;
  auto removal = std::make_unique<Removal>();
  try {
    removal->thread = std::thread([directory = directory_, gone, its = removal.get()] {
      const Instant until = io::Loop::now() + os::kDeadGiveWay;
      while (!its->hurries && io::Loop::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      remove_from(directory, gone);
      its->done = true;
    });
    removals_.push_back(std::move(removal));
  } catch (const std::system_error&) {  // No thread can be had.
    remove_from(directory_, gone);
  }
}

}  // namespace holdfast::runtime
