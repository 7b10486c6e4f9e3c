#include "core/controller/key_values.h"

#include <algorithm>

namespace holdfast::controller {

void KeyValues::restore(std::vector<wire::KeyValue> kept,
                        const std::vector<wire::Writer>& writers) {
  for (auto& one : kept) {
    bytes_ += one.key.size() + one.value.size();
    const std::string key = one.key;
    values_.emplace(key, std::make_shared<const wire::KeyValue>(std::move(one)));
  }
  for (const auto& last : writers) {
    writers_[last.writer] = {last.id, {Outcome::kSet, last.version}};
  }
}

std::optional<KeyValues::Written> KeyValues::put(const wire::Put& put) {
  if (put.writer == 0) return write(put);
  const auto last = writers_.find(put.writer);
  if (last != writers_.end() && put.id <= last->second.id) {
    if (put.id < last->second.id) return std::nullopt;
    Written again = last->second.written;
    if (again.is_set()) again.outcome = Outcome::kRepeated;
    return again;
  }
  if (last == writers_.end() && writers_.size() >= kMaxStoredKeys) {
    return Written{Outcome::kNoRoom};
  }
  // A refusal is remembered, too: a copy of this Put that comes late on a former connection must
  // not succeed. A restarted scheduler has no former connections, so refusals are not stored.
  const Written written = write(put);
  writers_[put.writer] = {put.id, written};
  return written;
}

KeyValues::Written KeyValues::write(const wire::Put& put) {
  const Found former = find(put.key);
  const wire::KeyVersion version = former ? former->version : 0;
  if (put.expected != wire::kAnyKeyVersion && put.expected != version) {
    return {Outcome::kOther, version};
  }
  const std::size_t freed = former ? put.key.size() + former->value.size() : 0;
  const std::size_t more = put.key.size() + put.value.size();
  const bool room =
      (former || values_.size() < kMaxStoredKeys) && bytes_ - freed + more <= kMaxStoredBytes;
  const bool own = put.key == wire::kSucceeded;  // Never refused for want of room.
  if (!room && !own) return {Outcome::kNoRoom, version};
  values_[put.key] =
      std::make_shared<const wire::KeyValue>(wire::KeyValue{put.key, put.value, version + 1});
  bytes_ += more - freed;
  return {Outcome::kSet, version + 1};
}

std::vector<Answer> KeyValues::answers(const std::string& key) {
  std::vector<Answer> all;
  const auto found = askers_.find(key);
  if (found == askers_.end()) return all;
  const auto askers = found->second;
  for (const auto& [link, id] : askers) {
    const Found value = newer(key, pending_.at(link).at(id).newer_than);
    if (!value) continue;
    all.push_back({link, id, value});
    withdraw(link, id);
  }
  return all;
}

Found KeyValues::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

Found KeyValues::newer(const std::string& key, wire::KeyVersion than) const {
  Found found = find(key);
  return found && found->version > than ? found : nullptr;
}

bool KeyValues::get(Link link, const wire::Get& get, Found& found) {
  withdraw(link, get.id);
  for (const auto& key : get.keys) {
    found = newer(key, get.newer_than);
    if (found) return true;
  }
  if (get.at_once) return true;
  pending_[link][get.id] = get;
  for (const auto& wanted : get.keys) askers_[wanted].insert({link, get.id});
  return false;
}

std::size_t KeyValues::pending(Link link) const {
  const auto of_link = pending_.find(link);
  return of_link == pending_.end() ? 0 : of_link->second.size();
}

void KeyValues::withdraw(Link link, std::uint64_t id) {
  const auto of_link = pending_.find(link);
  if (of_link == pending_.end()) return;
  const auto get = of_link->second.extract(id);
  if (of_link->second.empty()) pending_.erase(of_link);
  if (get.empty()) return;
  for (const auto& key : get.mapped().keys) {
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
  for (const auto& [id, get] : pending->second) ids.push_back(id);
  for (const auto id : ids) withdraw(link, id);
}

void KeyValues::clear() {
  *this = {};
}

}  // namespace holdfast::controller
