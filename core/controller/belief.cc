#include "core/controller/belief.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace holdfast::controller {

bool is_sound(const Said& said) {
  if (said.version == kNoVersion) return true;
  const bool follows = said.staged == said.version || said.staged == said.version + 1;
  return follows && said.staged >= said.told;
}

Belief believe(const std::vector<Said>& all) {
  std::map<Version, std::size_t> at;  // How many hold each version.
  std::vector<Version> told;
  for (const Said& said : all) {
    told.push_back(said.told);
    if (said.version != kNoVersion) ++at[said.version];
  }
  if (at.empty()) return {};
  std::sort(told.begin(), told.end());
  const auto contradicting = [&](Version n) {
    return told.end() - std::upper_bound(told.begin(), told.end(), n);
  };
  const auto believing = [&](Version n) {
    const auto before = n == 0 ? at.end() : at.find(n - 1);
    return at.at(n) + (before == at.end() ? 0 : before->second);
  };
  const auto best = std::min_element(at.begin(), at.end(), [&](const auto& a, const auto& b) {
    return std::tuple(believing(b.first), contradicting(a.first), a.first) <
           std::tuple(believing(a.first), contradicting(b.first), b.first);
  });
  Belief belief{.version = best->first, .impossible = {}};
  for (const Said& said : all) {
    if (said.version == kNoVersion) continue;
    const bool ahead = said.version > belief.version;
    const bool behind = said.version + 1 < belief.version;
    if (ahead || (behind && said.private_is_own)) belief.impossible.push_back(said.rank);
  }
  return belief;
}

}  // namespace holdfast::controller
