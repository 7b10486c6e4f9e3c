#include "core/controller/connections.h"

namespace holdfast::controller {

Peer* Connections::find(Link link) {
  const auto found = peers_.find(link);
  return found == peers_.end() ? nullptr : &found->second;
}

Peer* Connections::open(Link link) {
  Peer* peer = find(link);
  return peer == nullptr || peer->dismissed ? nullptr : peer;
}

Rank Connections::rank_at(Link link) const {
  const auto found = peers_.find(link);
  return found == peers_.end() || !found->second.has_seat ? kNoRank : found->second.rank;
}

void Connections::dismiss(Link link) {
  if (Peer* peer = find(link)) peer->dismissed = true;
  stop_waiting(link);
  dismissed_.push_back(link);
}

std::optional<Peer> Connections::close(Link link) {
  auto peer = peers_.extract(link);
  return peer.empty() ? std::nullopt : std::optional(std::move(peer.mapped()));
}

std::set<Link> Connections::waiting_for(const std::string& node_id) const {
  const auto found = waiting_for_.find(node_id);
  return found == waiting_for_.end() ? std::set<Link>() : found->second;
}

void Connections::keep_waiting(Link link, const wire::Register& m) {
  waiting_[link] = m;
  waiting_for_[m.node_id].insert(link);
}

void Connections::stop_waiting(Link link) {
  const auto found = waiting_.find(link);
  if (found == waiting_.end()) return;
  const auto others = waiting_for_.find(found->second.node_id);
  others->second.erase(link);
  if (others->second.empty()) waiting_for_.erase(others);
  waiting_.erase(found);
}

}  // namespace holdfast::controller
