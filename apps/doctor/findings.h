// What `holdfast doctor` makes of a host. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace holdfast::apps::doctor {

// What was seen of this host, by this user, within this control group (container).
struct Host {
  std::string kernel;           // "6.1.0-13-amd64"
  std::string machine;          // "x86_64"
  std::string unwatched;        // Why processes can not be watched; empty: they can.
  int processors = 0;           // That this process may use.
  std::optional<double> quota;  // How many of them the control group gives; nothing: all.
  bool can_undo_idle = false;   // os::may_undo_idle()
  std::uint64_t memory = 0;     // Available, in bytes.
  std::optional<std::uint64_t> memory_limit;  // Of the control group.
  std::string runtime_folder;  // Where the memory of jobs is: /dev/shm, or what is in its place.
  std::uint64_t shared_bytes = 0;          // What the file system of that folder holds,
  std::uint64_t shared_free = 0;           // and what of it is free.
  std::uint64_t descriptors = 0;           // RLIMIT_NOFILE
  std::optional<std::uint64_t> file_size;  // RLIMIT_FSIZE
  std::uint16_t port = 0;
  std::string port_taken;  // Why the scheduler could not listen; empty: it could.
  std::size_t living_jobs = 0;
  std::size_t dead_jobs = 0;
  std::vector<std::string> left_alone;      // Sentences on folders that are not this user's.
  std::string python_stacks;                // The program that reads stacks of Python; empty: none.
  std::string native_stacks;                // Likewise of all else.
  std::vector<std::string> set;             // The names of settings in the environment.
  std::string wrong_setting;                // A sentence; empty: they are right.
  std::vector<std::string> without_effect;  // Sentences on settings.
};

enum class Level : std::uint8_t {
  kGood,
  kNote,  // Jobs run, but with less, or only small ones.
  kBad,   // Jobs do not start, or fail.
};

struct Finding {
  Level level = Level::kGood;
  std::string what;
  std::string advice;  // What to do; empty: nothing.
};

std::vector<Finding> judge(const Host& host);

}  // namespace holdfast::apps::doctor
