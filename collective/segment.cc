#include "collective/segment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

#include "base/number.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"

namespace holdfast::collective {
namespace {

constexpr std::uint64_t kMagic = 0x3430504f52474648;  // "HFGROP04"
constexpr std::size_t kHalfUnit = 4096;  // Halves are whole pages: aligned for every type.
constexpr const char* kPrefix = "group-";

std::string file_name(const Group::Options& o) {
  return cat(kPrefix, o.generation, "-", hex(o.run_id));
}

// Removes the files of this run's lower generations, which never formed. Files of other runs stay:
// this run never opens them, and it can not tell which run is the older one.
void remove_lower(const Group::Options& o) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(o.directory, ignored)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix)) continue;
    Group::Options lower = o;
    lower.generation = std::strtoull(name.c_str() + std::strlen(kPrefix), nullptr, 10);
    if (lower.generation >= o.generation || name != file_name(lower)) continue;
    std::filesystem::remove(entry.path(), ignored);
  }
}

// Calls os::take_memory() again and again while there is no room, for at most `limit`.
template <class GivenUp>
int take_in_time(const os::Fd& file, std::uint64_t offset, std::uint64_t bytes,
                 std::chrono::milliseconds limit, const GivenUp& given_up) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (true) {
    const int error = os::take_memory(file, offset, bytes);
    if (error != ENOSPC || given_up() || std::chrono::steady_clock::now() >= end) return error;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

Status Segment::check(const Group::Options& o) {
  const auto refuse = [](std::string what) { return Error{Blame::kUser, std::move(what)}; };
  if (o.world_size < 1 || o.world_size > Group::kMaxRanks) {
    return refuse(cat("a group has 1 to ", Group::kMaxRanks, " ranks, not ", o.world_size));
  }
  if (o.rank < 0 || o.rank >= o.world_size) {
    return refuse(cat("rank ", o.rank, " is not within a world of ", o.world_size, " ranks"));
  }
  if (o.window_bytes < 4 * kHalfUnit) {
    return refuse(
        cat("window_bytes is ", o.window_bytes, "; at least ", 4 * kHalfUnit, " are needed"));
  }
  if (o.registered.bytes == 0) return {};
  if (o.registered.files.size() != static_cast<std::size_t>(o.world_size)) {
    return refuse(cat("registered.files names ", o.registered.files.size(), " files for ",
                      o.world_size, " ranks; one per rank is needed"));
  }
  if (o.registered.offset % 8 != 0) {
    return refuse(cat("registered.offset is ", o.registered.offset, ", not a multiple of 8"));
  }
  if (reinterpret_cast<std::uintptr_t>(o.registered.memory) % 8 != 0) {
    return refuse("registered.memory does not lie at a multiple of 8");
  }
  return {};
}

Segment::Segment(const Group::Options& options, os::Fd file, SharedMapping mapping)
    : file_(std::move(file)),
      mapping_(std::move(mapping)),
      directory_(options.directory),
      rank_(options.rank),
      world_size_(options.world_size),
      half_bytes_(options.window_bytes / 2 / kHalfUnit * kHalfUnit),
      room_timeout_(options.room_timeout) {}

Segment::Identity Segment::identity_of(const Group::Options& o) {
  return {.magic = kMagic,
          .run_id = o.run_id,
          .generation = o.generation,
          .world_size = static_cast<std::uint64_t>(o.world_size),
          .registered_offset = o.registered.bytes == 0 ? 0 : o.registered.offset,
          .registered_bytes = o.registered.bytes,
          .window_bytes = o.window_bytes};
}

std::size_t Segment::control_bytes(int world_size) {
  const auto ranks = static_cast<std::size_t>(world_size);
  return (sizeof(Control) + ranks * sizeof(RankState) + kHalfUnit - 1) / kHalfUnit * kHalfUnit;
}

std::size_t Segment::size_of(const Group::Options& o) {
  return control_bytes(o.world_size) +
         static_cast<std::size_t>(o.world_size) * 2 * (o.window_bytes / 2 / kHalfUnit * kHalfUnit);
}

std::byte* Segment::window(int rank, std::uint64_t piece) const {
  return mapping_->bytes().data() + control_bytes(world_size_) +
         (static_cast<std::size_t>(rank) * 2 + piece % 2) * half_bytes_;
}

Error Segment::no_room(const Group::Options& o) {
  const std::size_t first =
      control_bytes(o.world_size) + static_cast<std::size_t>(o.world_size) * 2 * kHalfUnit;
  return {Blame::kWorld, cat("no room in ", o.directory, " for the group's segment: ", first,
                             " bytes for ", o.world_size, " ranks, and up to ", size_of(o),
                             " once they exchange numbers; make room there")};
}

// A write to memory that a full tmpfs can not give is SIGBUS. So the memory that every job uses is
// taken before: the control pages here, and the first page of each half in open(). To take all of
// it would make each recovery of four ranks a millisecond longer; take_window() takes the rest when
// an operation needs it.
Status Segment::take_first(const os::Fd& file, std::size_t bytes, const Group::Options& o) {
  const int error = take_in_time(file, 0, bytes, o.room_timeout, [] { return false; });
  if (error == 0) return {};
  if (error == ENOSPC) return no_room(o);
  return Error{Blame::kWorld, cat("can not size the group's segment in ", o.directory, ": ",
                                  std::strerror(error), "; it must be on a tmpfs")};
}

bool Segment::take_window(std::size_t bytes) {
  if (bytes <= taken_) [[likely]]
    return true;
  const std::size_t up_to = (bytes + kHalfUnit - 1) / kHalfUnit * kHalfUnit;
  for (std::uint64_t half = 0; half < 2; ++half) {
    const auto begin = static_cast<std::size_t>(window(rank_, half) - mapping_->bytes().data());
    const int error = take_in_time(file_, begin + taken_, up_to - taken_, room_timeout_,
                                   [this] { return gate().frozen(); });
    if (error != 0) return false;
  }
  taken_ = up_to;
  return true;
}

// The file is made without a name, filled in, and then linked. So nobody can open an incomplete
// file, only one rank's link succeeds, and a crash leaves nothing behind. Until the link the file
// has only one page of memory, because all ranks may make one at once, and there may be room for a
// single segment only.
Status Segment::publish(const Group::Options& o, const std::string& path) {
  const auto failed = [&path](const char* what) {
    return Error{Blame::kWorld, cat("can not ", what, " the group's segment ", path, ": ",
                                    os::last_system_error(), "; its directory must be on a tmpfs")};
  };
  const os::Fd file(::open(o.directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file) return failed("make");
  if (::ftruncate(file.get(), static_cast<off_t>(size_of(o))) != 0) return failed("size");
  if (const Status taken = take_first(file, sizeof(Identity), o); !taken) return taken;
  const Identity identity = identity_of(o);  // The rest of Control starts as zero bytes.
  if (::pwrite(file.get(), &identity, sizeof identity, 0) != sizeof identity) return failed("fill");
  const std::string unnamed = cat("/proc/self/fd/", file.get());
  if (::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) {
    remove_lower(o);
    return {};
  }
  if (errno == EEXIST) return {};
  return failed("publish");
}

Result<os::Fd> Segment::open_or_publish(const Group::Options& o, const std::string& path,
                                        int name) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    auto opened = os::open_own_file(path, O_RDWR);
    if (!opened) return opened.error();
    os::Fd file = *std::move(opened);
    if (!file) {
      const Status made = publish(o, path);
      // No room? Another rank may have published its file just now, and taken the last room.
      if (!made && ::access(path.c_str(), F_OK) != 0) return made.error();
      continue;
    }
    Identity found{};
    struct stat status {};
    const bool whole = ::pread(file.get(), &found, sizeof found, 0) == sizeof found &&
                       found.magic == kMagic && found.run_id == o.run_id &&
                       found.generation == o.generation && ::fstat(file.get(), &status) == 0;
    if (!whole) {
      return Error{Blame::kWorld, cat(path, " is no segment of this run's generation ",
                                      o.generation, "; remove it")};
    }
    if (found != identity_of(o) || static_cast<std::size_t>(status.st_size) != size_of(o)) {
      return Error{
          Blame::kPeer,
          cat("rank ", name, " wants a group of ", o.world_size, " ranks, ", o.registered.bytes,
              " registered and ", o.window_bytes, " window bytes; another rank made it with ",
              found.world_size, " ranks, ", found.registered_bytes, " and ", found.window_bytes)};
    }
    return file;
  }
  return Error{Blame::kWorld, cat(path, " vanishes while generation ", o.generation,
                                  " forms; another run or a higher generation uses the directory")};
}

Status Segment::meet(const Group::Options& o, const std::stop_token& cancel) {
  if (state_of(o.rank).joined.exchange(1) != 0) {
    return Error{Blame::kPeer,
                 cat("rank ", name_of(o.rank), " has joined generation ", o.generation,
                     " already; a process that comes again needs a higher one")};
  }
  const auto deadline = std::chrono::steady_clock::now() + o.join_timeout;
  const Passage passage =
      gate().arrive_and_wait(static_cast<std::uint64_t>(o.world_size), deadline, cancel);
  if (passage == Passage::kPassed) {
    if (o.rank == o.world_size - 1) ::unlink(cat(o.directory, "/", file_name(o)).c_str());
    return {};
  }
  std::vector<int> missing;
  for (int k = 0; k < o.world_size; ++k) {
    if (state_of(k).joined.load() == 0) missing.push_back(name_of(k));
  }
  const std::string who = missing.empty() ? "" : cat("; ", name_ranks(missing), " did not join");
  if (cancel.stop_requested()) {
    return Error{Blame::kWorld, cat("joining generation ", o.generation, " was cancelled", who)};
  }
  if (std::chrono::steady_clock::now() >= deadline) {
    return Error{Blame::kWorld, cat("generation ", o.generation, " did not form within ",
                                    o.join_timeout.count(), " ms", who)};
  }
  return Error{Blame::kWorld, cat("another member gave up forming generation ", o.generation, who)};
}

Result<std::unique_ptr<Segment>> Segment::open(const Group::Options& options,
                                               std::vector<int> names) {
  if (const Status good = check(options); !good) return good.error();
  const std::string path = cat(options.directory, "/", file_name(options));
  const int name = names.empty() ? options.rank : names[static_cast<std::size_t>(options.rank)];
  auto file = open_or_publish(options, path, name);
  if (!file) return file.error();
  if (auto taken = take_first(*file, control_bytes(options.world_size), options); !taken)
    return taken.error();
  auto mapping = map_shared(*file, path, 0, size_of(options));
  if (!mapping) return mapping.error();
  std::unique_ptr<Segment> segment(new Segment(options, *std::move(file), *std::move(mapping)));
  segment->names_ = std::move(names);
  if (segment->take_window(kHalfUnit)) return segment;
  segment->gate().abort();  // The others need not wait for a rank that can not come.
  return no_room(options);
}

void Segment::leave() {
  state_of(rank_).left.store(1);
  gate().leave();
}

std::vector<int> Segment::left() const {
  std::vector<int> ranks;
  for (int k = 0; k < world_size_; ++k) {
    if (state_of(k).left.load() != 0) ranks.push_back(name_of(k));
  }
  return ranks;
}

}  // namespace holdfast::collective
