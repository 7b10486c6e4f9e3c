// Connections: messages keep their order within a connection, not between two. Any connection may
// break at any moment.
#include <utility>

#include "base/text.h"
#include "sim/world.h"
#include "wire/codec.h"

namespace holdfast::sim {
namespace {

constexpr Duration kAgentRetry = std::chrono::milliseconds(50);

}  // namespace

World::Index World::connect(Index worker, Index agent) {
  links_.emplace_back();
  links_.back().worker = worker;
  links_.back().agent = agent;
  const Index link = links_.size() - 1;
  if (scheduler_runs()) accept(link);
  return link;
}

// Tells the controller of a new connection. A scheduler that stands still is told later, before the
// connection's first message.
void World::accept(Index link) {
  if (std::exchange(links_[link].accepted, true)) return;
  const bool agent = links_[link].worker == kNone;
  tell_controller(
      controller::Connected{link + 1, agent ? wire::PeerKind::kAgent : wire::PeerKind::kWorker});
}

void World::send_up(Index link, const wire::Message& message) {
  auto& to = links_[link];
  if (!to.client_open || to.client_gone || to.scheduler_gone) return;  // The message is lost.
  to.up.push_back(written(message));
}

void World::send_down(Index link, const wire::Message& message) {
  auto& to = links_[link];
  if (!to.scheduler_open || to.client_gone || to.scheduler_gone) return;
  to.down.push_back(written(message));
}

World::Letter World::written(const wire::Message& message) {
  return {wire::kind_of(message), wire::encode(message)};
}

// Decodes a message. It is a violation if that fails: every process must send valid messages.
std::optional<wire::Message> World::read(const Letter& letter) {
  auto message = wire::decode(letter.kind, letter.body);
  if (message) return *std::move(message);
  checkers_.violate(cat("P53: ", message.error().what));
  return std::nullopt;
}

void World::deliver_up(Index link) {
  auto message = read(links_[link].up.front());
  links_[link].up.pop_front();
  if (message) hear(link, *std::move(message));
}

void World::deliver_down(Index link) {
  auto heard = read(links_[link].down.front());
  links_[link].down.pop_front();
  if (!heard) return;
  wire::Message& message = *heard;
  if (links_[link].worker == kNone) {
    tell_agent(links_[link].agent, agent::Received{std::move(message)});
  } else if (links_[link].exchanges) {
    hear_of_exchange(links_[link].worker, message);
  } else {
    const Index worker = links_[link].worker;
    if (std::exchange(workers_[worker].cut_off, false)) tell_trainer(worker, trainer::InReach{});
    tell_member(worker, member::Received{std::move(message)});
  }
}

void World::scheduler_hears(Index link) {
  auto& from = links_[link];
  from.scheduler_open = false;
  from.up.clear();
  accept(link);
  tell_controller(controller::Closed{link + 1});
  if (from.worker == kNone || !setup_.proof) return;
  const Worker& worker = workers_[from.worker];
  if (!worker.alive) proofs_.push_back({worker.node_id, worker.incarnation});
}

void World::client_hears(Index link) {
  links_[link].client_open = false;
  if (const Index index = links_[link].agent; links_[link].worker == kNone) {
    agents_[index].link = kNone;
    agents_[index].connects_at = now_ + kAgentRetry;
    agents_[index].gives_up_at = now_ + kAlonePatience;
    tell_agent(index, agent::LinkDown{});
    return;
  }
  Worker& worker = workers_[links_[link].worker];
  if (links_[link].exchanges) {
    worker.exchange.link = kNone;
    return;
  }
  worker.link = kNone;
  worker.gives_up_at = now_ + kAlonePatience;
  tell_member(links_[link].worker, member::Disconnected{});
}

void World::client_is_gone(Index link, bool loses) {
  auto& to = links_[link];
  to.client_open = false;
  to.client_gone = true;
  to.down.clear();
  if (loses) to.up.clear();
}

void World::break_link(Index link, std::uint32_t survives) {
  auto& broken = links_[link];
  broken.client_gone = broken.scheduler_gone = true;
  if ((survives & 1) == 0) broken.up.clear();
  if ((survives & 2) == 0) broken.down.clear();
}

}  // namespace holdfast::sim
