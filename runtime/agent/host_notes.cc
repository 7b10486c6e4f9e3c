#include "runtime/agent/host_notes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/number.h"
#include "base/text.h"
#include "os/files.h"
#include "os/random_bits.h"

namespace holdfast::runtime {
namespace {

using Json = nlohmann::json;

// None of these is a name of a snapshot.
constexpr const char* kFolder = "last-";
constexpr const char* kNote = "host-";
constexpr std::time_t kOldAfter = 60;
constexpr std::time_t kForgottenAfter = 600;  // Clocks of hosts may differ.

Json to_json(const LeftState& state) {
  return {state.rank,         state.version,    state.staged,           state.is_clean,
          state.part.version, state.part.bytes, hex(state.part.digest), hex(state.part.shared),
          state.loaded};
}

// Throws nlohmann::json::exception.
LeftState from_json(const Json& json) {
  LeftState state{.rank = json.at(0).get<Rank>(),
                  .version = json.at(1).get<Version>(),
                  .staged = json.at(2).get<Version>(),
                  .is_clean = json.at(3).get<bool>()};
  state.part = {.version = json.at(4).get<Version>(),
                .bytes = json.at(5).get<std::uint64_t>(),
                .digest = number_of_hex(json.at(6).get<std::string>()).value_or(0),
                .shared = number_of_hex(json.at(7).get<std::string>()).value_or(0)};
  state.loaded = json.at(8).get<Version>();
  return state;
}

}  // namespace

Result<HostNotes> HostNotes::open(const std::string& dir, std::uint64_t run_id) {
  if (Status made = os::make_directories(dir); !made) return made.error();
  auto folder = os::Folder::make(cat(dir, '/', kFolder, hex(run_id)), os::Folder::kWriting);
  if (!folder) return folder.error();
  return HostNotes(*std::move(folder), cat(kNote, hex(os::random_bits())));
}

Status HostNotes::write(const std::vector<LeftState>& states) const {
  Json json = Json::array();
  for (const LeftState& state : states) json.push_back(to_json(state));
  return folder_.write(own_, json.dump());
}

// By the clock of the file system, which is one for all hosts; 0: it is gone.
std::time_t HostNotes::written(const std::string& name) const {
  struct stat about {};
  return ::fstatat(folder_.get(), name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0 ? about.st_mtime
                                                                                  : 0;
}

std::vector<LeftState> HostNotes::read() const {
  std::vector<LeftState> all;
  const std::time_t now = written(own_);
  for (const std::string& name : folder_.names()) {
    if (!name.starts_with(kNote) || written(name) + kOldAfter < now) continue;
    const auto text = folder_.read(name);
    if (!text) continue;  // Its host has removed it meanwhile.
    try {
      std::vector<LeftState> of_host;
      for (const Json& one : Json::parse(*text)) of_host.push_back(from_json(one));
      all.insert(all.end(), of_host.begin(), of_host.end());
    } catch (const Json::exception&) {
      continue;
    }
  }
  return all;
}

void HostNotes::remove() const {
  (void)folder_.remove(own_);
  (void)::rmdir(folder_.path().c_str());
}

void HostNotes::remove_old(const std::string& dir) {
  for (const std::string& name : os::names_in(dir)) {
    if (!name.starts_with(kFolder)) continue;
    auto folder = os::Folder::open(cat(dir, '/', name), os::Folder::kWriting);
    if (!folder || !*folder) continue;
    const HostNotes notes(*std::move(folder), "");
    for (const std::string& note : notes.folder_.names()) {
      const bool is_old = notes.written(note) + kForgottenAfter < std::time(nullptr);
      if (note.starts_with(kNote) && is_old) (void)notes.folder_.remove(note);
    }
    (void)::rmdir(notes.folder_.path().c_str());
  }
}

}  // namespace holdfast::runtime
