// For tests: a process that is killed before one of its system calls, and what its folder would be
// after a power cut at that instant.
#pragma once

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/prng.h"
#include "base/text.h"

namespace holdfast::snapshot::testing {

// A folder, and the part of it that is known to be on a disk: of a file what it was at its last
// fsync(), of a folder its names at its last fsync(). Requires: its file system gives no inode
// number twice, as tmpfs.
class Disk {
 public:
  // What a power cut leaves of that which was not synced.
  enum class Leaves {
    kNothing,
    kNames,       // All names, and no bytes.
    kThisAndThat  // Each name as it was or as it is, each file as it was synced or as it is.
  };

  // All that is there now is on the disk.
  explicit Disk(std::string folder) : folder_(std::move(folder)) {
    device_ = about(folder_).st_dev;
    walk(folder_, files_, names_);
  }

  // Runs `work` in a child process up to its system call number `calls`, before which it is killed.
  // Returns its exit code if it has ended by itself.
  std::optional<int> run(const std::function<int()>& work, int calls) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::raise(SIGSTOP);
      ::_exit(work());
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    std::optional<int> synced;  // By the call that it is in.
    int signal = 0;
    while (::ptrace(PTRACE_SYSCALL, child, nullptr, signal) == 0 &&
           ::waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
      signal = WSTOPSIG(status) == (SIGTRAP | 0x80) ? 0 : WSTOPSIG(status);
      if (signal != 0) continue;
      __ptrace_syscall_info call{};
      ::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof call, &call);
      if (call.op == PTRACE_SYSCALL_INFO_ENTRY) {
        if (calls-- == 0) ::kill(child, SIGKILL);
        const bool syncs = call.entry.nr == SYS_fsync;
        synced = syncs ? std::optional(static_cast<int>(call.entry.args[0])) : std::nullopt;
      } else if (synced && call.exit.rval == 0) {
        sync(cat("/proc/", child, "/fd/", *synced));
      }
    }
    return WIFEXITED(status) ? std::optional(WEXITSTATUS(status)) : std::nullopt;
  }

  // Writes what a power cut would leave now to `to`, a new folder.
  void cut(const std::string& to, Leaves leaves, Prng& random) const {
    Files files;
    Folders names;
    walk(folder_, files, names);
    const auto is_lucky = [&](Leaves sure) {
      return leaves == sure || (leaves == Leaves::kThisAndThat && random.below(2) == 0);
    };
    const std::function<void(ino_t, const std::string&)> write = [&](ino_t inode,
                                                                     const std::string& path) {
      if (!names_.contains(inode) && !names.contains(inode)) {
        const bool is_lost =
            leaves != Leaves::kThisAndThat || !files.contains(inode) || random.below(2) == 0;
        const auto& from = is_lost ? files_ : files;
        std::ofstream(path, std::ios::binary) << (from.contains(inode) ? from.at(inode) : "");
        return;
      }
      std::filesystem::create_directory(path);
      ::chmod(path.c_str(), 0700);
      const Names before = names_.contains(inode) ? names_.at(inode) : Names();
      const Names after = names.contains(inode) ? names.at(inode) : before;
      Names all = before;
      all.insert(after.begin(), after.end());
      for (const auto& [name, any] : all) {
        const Names& from = is_lucky(Leaves::kNames) ? after : before;
        if (from.contains(name)) write(from.at(name), cat(path, '/', name));
      }
    };
    write(about(folder_).st_ino, to);
  }

 private:
  using Files = std::map<ino_t, std::string>;
  using Names = std::map<std::string, ino_t>;
  using Folders = std::map<ino_t, Names>;

  static struct stat about(const std::string& path) {
    struct stat found {};
    ::stat(path.c_str(), &found);
    return found;
  }
  static std::string bytes_in(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static Names names_in(const std::string& path) {
    Names names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      names[entry.path().filename()] = about(entry.path()).st_ino;
    }
    return names;
  }
  static void walk(const std::string& path, Files& files, Folders& folders) {
    const struct stat found = about(path);
    if (!S_ISDIR(found.st_mode)) {
      files[found.st_ino] = bytes_in(path);
      return;
    }
    const Names names = folders[found.st_ino] = names_in(path);
    for (const auto& [name, inode] : names) walk(cat(path, '/', name), files, folders);
  }
  void sync(const std::string& descriptor) {
    const struct stat found = about(descriptor);
    if (found.st_dev != device_) return;
    if (S_ISDIR(found.st_mode)) {
      names_[found.st_ino] = names_in(descriptor + "/");
    } else {
      files_[found.st_ino] = bytes_in(descriptor);
    }
  }

  const std::string folder_;
  dev_t device_ = 0;
  Files files_;
  Folders names_;
};

}  // namespace holdfast::snapshot::testing
