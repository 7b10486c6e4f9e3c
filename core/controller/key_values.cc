#include "core/controller/key_values.h"

#include <algorithm>

namespace holdfast::controller {

void KeyValues::restore(std::vector<wire::KeyValue> stored) {
  for (auto& [key, value] : stored) {
    bytes_ += key.size() + value.size();
    values_.emplace(std::move(key), std::move(value));
  }
}

KeyValues::Put KeyValues::put(const std::string& key, const std::string& value) {
  if (values_.contains(key)) return Put::kKnown;
  const std::size_t more = key.size() + value.size();
  if (values_.size() >= kMaxStoredKeys || more > kMaxStoredBytes - bytes_) return Put::kNoRoom;
  values_.emplace(key, value);
  bytes_ += more;
  return Put::kNew;
}

std::vector<Answer> KeyValues::answers(const std::string& key) {
  std::vector<Answer> all;
  const auto found = askers_.find(key);
  if (found == askers_.end()) return all;
  const auto askers = std::exchange(found->second, {});
  for (const auto& [link, id] : askers) {
    all.push_back({link, id, key});
    withdraw(link, id);
  }
  askers_.erase(key);
  return all;
}

const std::string* KeyValues::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

KeyValues::Asked KeyValues::get(Link link, const wire::Get& get, std::optional<std::string>& key) {
  withdraw(link, get.id);
  const auto found = std::find_if(get.keys.begin(), get.keys.end(),
                                  [&](const auto& wanted) { return values_.contains(wanted); });
  if (found != get.keys.end()) {
    key = *found;
    return Asked::kAnswered;
  }
  if (get.at_once) return Asked::kAnswered;
  auto& pending = pending_[link];
  if (pending.size() >= kMaxPendingGets) return Asked::kTooMany;
  pending[get.id] = get.keys;
  for (const auto& wanted : get.keys) askers_[wanted].insert({link, get.id});
  return Asked::kWaits;
}

void KeyValues::withdraw(Link link, std::uint64_t id) {
  const auto of_link = pending_.find(link);
  if (of_link == pending_.end()) return;
  const auto get = of_link->second.extract(id);
  if (of_link->second.empty()) pending_.erase(of_link);
  if (get.empty()) return;
  for (const auto& key : get.mapped()) {
    const auto found = askers_.find(key);
    if (found == askers_.end()) continue;
    found->second.erase({link, id});
    if (found->second.empty()) askers_.erase(found);
  }
}

void KeyValues::closed(Link link) {
  const auto pending = pending_.find(link);
  if (pending == pending_.end()) return;
  std::vector<std::uint64_t> ids;
  for (const auto& [id, keys] : pending->second) ids.push_back(id);
  for (const auto id : ids) withdraw(link, id);
}

void KeyValues::clear() {
  *this = {};
}

}  // namespace holdfast::controller
