// The connections: who is at the other end, for which seat it speaks, and who waits for a place.
#pragma once

#include <set>
#include <utility>

#include "base/ids.h"
#include "core/controller/key_values.h"
#include "wire/messages.h"

namespace holdfast::controller {

// What is at the other end of a connection.
struct Peer {
  wire::PeerKind kind = wire::PeerKind::kWorker;
  bool dismissed = false;       // The connection is being closed: what it still sends is ignored.
  bool is_told_end = false;     // It was told of the job's end.
  std::string node_id;          // Of the process that has registered here; empty: none has.
  Incarnation incarnation = 0;  // Of the same process.
  bool has_seat = false;        // Its messages count as those of a seat,
  Rank rank = kNoRank;          // that of this rank; kNoRank: the ranks are not given yet.
};

class Connections {
 public:
  [[nodiscard]] const std::map<Link, Peer>& all() const { return peers_; }
  [[nodiscard]] Peer* find(Link link);  // Null: there is no such connection.
  [[nodiscard]] Peer* open(Link link);  // The same, but null also if it is being closed.
  [[nodiscard]] Peer& at(Link link) { return peers_.at(link); }
  [[nodiscard]] Rank rank_at(Link link) const;  // kNoRank: it speaks for no rank.

  void connect(Link link, wire::PeerKind kind) { peers_[link] = {.kind = kind}; }
  // From now on, what this connection sends is ignored. Its Close is emitted while the present
  // event is handled, or later, when the record behind it is durable.
  void dismiss(Link link);
  [[nodiscard]] std::vector<Link> take_dismissed() { return std::exchange(dismissed_, {}); }
  [[nodiscard]] std::optional<Peer> close(Link link);

  // Processes that ask for a place and can not have it yet. Several may ask for one place.
  [[nodiscard]] const std::map<Link, wire::Register>& waiting() const { return waiting_; }
  [[nodiscard]] std::set<Link> waiting_for(const std::string& node_id) const;
  void keep_waiting(Link link, const wire::Register& m);
  void stop_waiting(Link link);

 private:
  std::map<Link, Peer> peers_;
  std::vector<Link> dismissed_;  // Dismissed while the present event is handled.
  std::map<Link, wire::Register> waiting_;
  std::map<std::string, std::set<Link>> waiting_for_;  // The links in waiting_, by node id.
};

}  // namespace holdfast::controller
