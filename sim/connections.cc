#include "sim/connections.h"

#include <utility>

#include "base/text.h"
#include "wire/codec.h"

namespace holdfast::sim {

Index Connections::add(Index worker, Index agent) {
  job_.links.emplace_back();
  job_.links.back().worker = worker;
  job_.links.back().agent = agent;
  return job_.links.size() - 1;
}

void Connections::skip_closed() {
  const auto is_closed = [&](const Connection& link) {
    return !link.scheduler_open && !link.client_open;
  };
  while (first_open_ < job_.links.size() && is_closed(job_.links[first_open_])) ++first_open_;
}

std::optional<wire::Message> Connections::take_up(Index link) {
  auto message = read(job_.links[link].up.front());
  job_.links[link].up.pop_front();
  return message;
}

std::optional<wire::Message> Connections::take_down(Index link) {
  auto message = read(job_.links[link].down.front());
  job_.links[link].down.pop_front();
  return message;
}

void Connections::send_up(Index link, const wire::Message& message) {
  auto& to = job_.links[link];
  if (!to.client_open || to.client_gone || to.scheduler_gone) return;  // The message is lost.
  to.up.push_back(written(message));
}

void Connections::send_down(Index link, const wire::Message& message) {
  auto& to = job_.links[link];
  if (!to.scheduler_open || to.client_gone || to.scheduler_gone) return;
  to.down.push_back(written(message));
}

Letter Connections::written(const wire::Message& message) {
  return {wire::kind_of(message), wire::encode(message)};
}

// Decodes a message. It is a violation if that fails: every process must send valid messages.
std::optional<wire::Message> Connections::read(const Letter& letter) {
  auto message = wire::decode(letter.kind, letter.body);
  if (message) return *std::move(message);
  job_.checkers.violate(cat("P53: ", message.error().what));
  return std::nullopt;
}

void Connections::client_is_gone(Index link, bool loses) {
  auto& to = job_.links[link];
  to.client_open = false;
  to.client_gone = true;
  to.down.clear();
  if (loses) to.up.clear();
}

void Connections::break_link(Index link, std::uint32_t survives) {
  auto& broken = job_.links[link];
  broken.client_gone = broken.scheduler_gone = true;
  if ((survives & 1) == 0) broken.up.clear();
  if ((survives & 2) == 0) broken.down.clear();
}

}  // namespace holdfast::sim
