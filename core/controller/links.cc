// Who is connected: what each may say, and how all hear of the job's end.
#include "core/controller/machine.h"

namespace holdfast::controller {

using wire::PeerKind;
using wire::Reason;
using wire::Stage;

namespace {

template <class... Kinds>
bool is_any(const wire::Message& message) {
  return (std::holds_alternative<Kinds>(message) || ...);
}

// Whether a process of this kind says such things (P40). The shell answers a StatusQuery itself.
bool is_for(PeerKind kind, const wire::Message& message) {
  switch (kind) {
    case PeerKind::kWorker:
      return is_any<wire::Register, wire::Report, wire::Repaired, wire::Progress, wire::GroupLost,
                    wire::Finished, wire::Failed, wire::Put, wire::Get, wire::Heartbeat,
                    wire::AskAddresses>(message);
    case PeerKind::kAgent:
      return is_any<wire::AgentState, wire::Failed, wire::Put, wire::Get, wire::Heartbeat,
                    wire::AskAddresses>(message);
    case PeerKind::kObserver:
      return is_any<wire::Heartbeat, wire::Move>(message);
    case PeerKind::kPeer:
      return false;
  }
  return false;
}

}  // namespace

void Machine::on(const Connected& e) {
  peers_[e.link] = {.kind = e.kind};
  if (formation_.stage == Stage::kEnded) tell_end(e.link);
}

void Machine::on(const Received& e) {
  const auto peer = peers_.find(e.link);
  if (peer == peers_.end() || peer->second.dismissed) return;
  if (!is_for(peer->second.kind, e.message)) return reject_word(e.link, e.message);
  if (Agent* agent = agents_.find(e.link)) {
    hear_agent(*agent);
    agent->beats = agent->beats || std::holds_alternative<wire::Heartbeat>(e.message);
  }
  if (const Member* member = member_on(e.link)) {
    roster_.hear(*member,
                 now_);  // Also while others are still to come: its lease runs from then on.
    // It lives after all. What it reported was struck out when it was lost: ask again.
    if (member->state == SeatState::kSilent) {
      host_speaks(*member);
      roster_.advance(*member, SeatEvent::kHeard);
      if (formation_.stage == Stage::kStopping) assign(rank_at(e.link));
    }
  }
  std::visit([&](const auto& message) { receive(e.link, message); }, e.message);
}

// It would say the same on every other connection.
void Machine::on(const Unreadable& e) {
  const auto peer = peers_.find(e.link);
  if (peer == peers_.end() || peer->second.dismissed) return;
  Reason why{.kind = Reason::Kind::kUnreadable, .node_id = peer->second.node_id, .detail = e.why};
  if (const Agent* agent = agents_.find(e.link)) {
    why.other = agent->agent_id;
    why.host = agent->host;
  }
  reject(e.link, std::move(why));
}

void Machine::on(const Closed& e) {
  forget_agent(e.link);
  if (transfer_ && transfer_->asker == e.link)
    transfer_.reset();  // Nobody would hear what became of it.
  stop_waiting(e.link);
  assign_free_places();
  answer_askers();
  key_values_.closed(e.link);
  outbox_.closed(e.link);
  const auto peer = peers_.extract(e.link);
  if (peer.empty() || !peer.mapped().has_seat) return;
  if (peer.mapped().rank == kNoRank) {  // Before the ranks are given it just makes room.
    roster_.forget_arrival(peer.mapped().node_id);
    return answer_waiting(peer.mapped().node_id);
  }
  const Member& member = roster_.at(peer.mapped().rank);
  // Its lease runs on: a lost host closes nothing, and this end notices it late.
  roster_.alter(member, [](Member& changed) { changed.link = 0; });
  hang_up(member);
  // Without an agent nobody tells its exit code: a finished process that hung up has left.
  if (member.seat.attempt == 0) roster_.advance(member, SeatEvent::kHungUp);
  maybe_all_left();
}

// Names that are kept for a connection have a bound.
std::optional<Reason> Machine::excess(std::initializer_list<const std::string*> names) {
  for (const std::string* name : names) {
    if (name->size() <= kMaxNameBytes) continue;
    return Reason{.kind = Reason::Kind::kTooMuch,
                  .count = static_cast<std::int64_t>(name->size()),
                  .total = static_cast<std::int64_t>(kMaxNameBytes),
                  .detail = "bytes of a name"};
  }
  return std::nullopt;
}

void Machine::refuse(Link link, Reason reason) {
  send(link, wire::Refused{{}, std::move(reason)});
  dismiss(link);
}

// As refuse, for what no process of the job says that is sound.
void Machine::reject(Link link, Reason reason) {
  note(Note::Kind::kRefused, rank_at(link), reason);
  refuse(link, std::move(reason));
}

void Machine::reject_word(Link link, const wire::Message& message) {
  reject(link, {.kind = Reason::Kind::kNotItsWord,
                .count = static_cast<std::int64_t>(message.index()) + 1,
                .total = static_cast<std::int64_t>(peers_.at(link).kind)});
}

// Nothing more is heard of it, and send() says nothing to it. The event that is being handled goes
// on to its end, and may still look at its agent.
void Machine::dismiss(Link link) {
  if (const auto peer = peers_.find(link); peer != peers_.end()) peer->second.dismissed = true;
  stop_waiting(link);
  dismissed_.push_back(link);
  emit(Close{link});
}

// While an agent is waited for that is to hear it first, all others have to wait as well (P32).
void Machine::tell_end(Link link) {
  const auto peer = peers_.find(link);
  if (peer == peers_.end() || peer->second.dismissed || (leaves_at_ && !left_)) return;
  if (std::exchange(peer->second.is_told_end, true)) return;
  if (peer->second.kind != PeerKind::kObserver) {
    send(link, wire::JobEnded{formation_.success, formation_.end});
  }
  // An agent of another host hangs up once it has heard it: it may be cut off just now.
  const Agent* agent = agents_.find(link);
  const bool is_own = agent != nullptr && is_here(*agent);
  if (peer->second.kind != PeerKind::kAgent || is_own) dismiss(link);
}

// First the agents: they have to know it before the processes that they watch exit.
void Machine::tell_end_to_all() {
  for (const bool agents : {true, false}) {
    for (const auto& [link, peer] : peers_) {
      if ((peer.kind == PeerKind::kAgent) == agents) tell_end(link);
    }
  }
}

}  // namespace holdfast::controller
