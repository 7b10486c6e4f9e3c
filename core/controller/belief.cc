#include "core/controller/belief.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace holdfast::controller {

namespace {

bool is_whole_at(const Said& said, Version n) {
  return said.version == n || (said.version + 1 == n && said.staged == n);
}

}  // namespace

bool is_sound(const Said& said) {
  if (said.version == kNoVersion) return true;
  const bool follows = said.staged == said.version || said.staged == said.version + 1;
  return follows && said.staged >= said.told;
}

Belief believe(const std::vector<Said>& all) {
  std::map<Version, std::size_t> whole;  // How many are whole at a version.
  std::vector<Version> told;
  for (const Said& said : all) {
    told.push_back(said.told);
    if (said.version == kNoVersion) continue;
    ++whole[said.version];
    if (said.staged != said.version) ++whole[said.staged];
  }
  if (whole.empty()) return {};
  std::sort(told.begin(), told.end());
  const auto contradicting = [&](Version n) {
    return told.end() - std::upper_bound(told.begin(), told.end(), n);
  };
  // Where all could make the same next step, both that one and the one before will do: the first.
  const auto best = std::min_element(whole.begin(), whole.end(), [&](const auto& a, const auto& b) {
    return std::tuple(b.second, contradicting(a.first), a.first) <
           std::tuple(a.second, contradicting(b.first), b.first);
  });
  Belief belief{.version = best->first, .impossible = {}};
  for (const Said& said : all) {
    if (said.version == kNoVersion || is_whole_at(said, belief.version)) continue;
    // One that holds n-1 with n staged is whole at both: n-1 was the choice.
    const bool ahead = said.version > belief.version;
    if (ahead || said.private_is_own) belief.impossible.push_back(said.rank);
  }
  return belief;
}

}  // namespace holdfast::controller
