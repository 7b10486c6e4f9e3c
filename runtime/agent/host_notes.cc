#include "runtime/agent/host_notes.h"

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

Json to_json(const LeftState& state) {
  return {state.rank,         state.version,    state.staged,          state.is_clean,
          state.part.version, state.part.bytes, hex(state.part.digest)};
}

// Throws nlohmann::json::exception.
LeftState from_json(const Json& json) {
  LeftState state{.rank = json.at(0).get<Rank>(),
                  .version = json.at(1).get<Version>(),
                  .staged = json.at(2).get<Version>(),
                  .is_clean = json.at(3).get<bool>()};
  state.part = {.version = json.at(4).get<Version>(),
                .bytes = json.at(5).get<std::uint64_t>(),
                .digest = number_of_hex(json.at(6).get<std::string>()).value_or(0)};
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

std::vector<LeftState> HostNotes::read() const {
  std::vector<LeftState> all;
  for (const std::string& name : folder_.names()) {
    if (!name.starts_with(kNote)) continue;
    const auto text = folder_.read(name);
    if (!text) continue;  // Its host has removed it meanwhile.
    try {
      for (const Json& one : Json::parse(*text)) all.push_back(from_json(one));
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

}  // namespace holdfast::runtime
