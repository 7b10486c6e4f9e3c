// Who is connected, for which seat each speaks, and who waits for a place.
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
  bool dismissed = false;       // Its connection is being closed: nothing is heard of it any more.
  bool is_told_end = false;     // Of the job.
  std::string node_id;          // Of the process that has registered here; empty: none has,
  Incarnation incarnation = 0;  // as is this.
  bool has_seat = false;        // What it says is the word of a seat,
  Rank rank = kNoRank;          // of this one; kNoRank: the ranks are not given yet.
};

class Connections {
 public:
  [[nodiscard]] const std::map<Link, Peer>& all() const { return peers_; }
  [[nodiscard]] Peer* find(Link link);  // Null: there is none.
  [[nodiscard]] Peer* open(Link link);  // Null: or it is being closed.
  [[nodiscard]] Peer& at(Link link) { return peers_.at(link); }
  [[nodiscard]] Rank rank_at(Link link) const;  // kNoRank: it speaks for none.

  void connect(Link link, wire::PeerKind kind) { peers_[link] = {.kind = kind}; }
  // Nothing more is heard of it. It is closed by the event that is being handled, or later.
  void dismiss(Link link);
  [[nodiscard]] std::vector<Link> take_dismissed() { return std::exchange(dismissed_, {}); }
  [[nodiscard]] std::optional<Peer> close(Link link);

  // Processes that ask for a place which they can not have yet; there may be several for one.
  [[nodiscard]] const std::map<Link, wire::Register>& waiting() const { return waiting_; }
  [[nodiscard]] std::set<Link> waiting_for(const std::string& node_id) const;
  void keep_waiting(Link link, const wire::Register& m);
  void stop_waiting(Link link);

 private:
  std::map<Link, Peer> peers_;
  std::vector<Link> dismissed_;  // By the event that is being handled.
  std::map<Link, wire::Register> waiting_;
  std::map<std::string, std::set<Link>> waiting_for_;  // The same, by node id.
};

}  // namespace holdfast::controller
