#include "core/controller/addresses.h"

#include "base/text.h"

namespace holdfast::controller {

// Where each rank is; empty if all share one memory. If all ranks are in one domain, each host
// counts as a domain: a copy on another host is better than none.
std::vector<PeerPlace> Addresses::peer_places() const {
  std::vector<PeerPlace> places;
  if (job_.roster.memories() <= 1) return places;
  std::map<std::string, PeerPlace> first_of;  // By memory. Its first rank names the domain.
  std::map<std::string, std::uint32_t> domains;
  // The host of the last rank: the next rank is likely to share it.
  const PeerPlace* host = nullptr;
  const std::string* memory = nullptr;
  for (const Member& member : job_.roster.each()) {
    const wire::Seat& seat = member.seat;
    if (memory == nullptr || *memory != seat.memory) {
      memory = &seat.memory;
      const auto number = static_cast<std::uint32_t>(first_of.size());
      const auto [found, is_new] = first_of.try_emplace(seat.memory, PeerPlace{.host = number});
      host = &found->second;
      if (is_new) {
        const std::string domain = seat.domain.empty() ? cat("host ", seat.memory) : seat.domain;
        const auto next = static_cast<std::uint32_t>(domains.size());
        found->second.domain = domains.try_emplace(domain, next).first->second;
      }
    }
    places.push_back({host->host, seat.endpoint, host->domain});
  }
  for (PeerPlace& place : places) {
    if (domains.size() == 1) place.domain = place.host;
  }
  return places;
}

void Addresses::refresh() {
  if (!job_.roster.take_moved()) return;
  AddressBook next(peer_places());
  if (next.name() == book_.name()) return;
  const AddressBook before = std::exchange(book_, std::move(next));
  if (book_.name() == 0) return;  // All ranks share one memory now and need no book.
  const wire::Addresses changes = book_.since(before);
  for (auto& [link, agent] : job_.agents.here()) {
    const bool knows = std::exchange(agent.book, book_.name()) == before.name();
    job_.send(link, knows ? changes : book_.whole());
  }
}

void Addresses::tell(Link link) {
  if (book_.name() == 0) return;
  if (Agent* agent = job_.agents.find(link)) agent->book = book_.name();
  job_.send(link, book_.whole());
}

}  // namespace holdfast::controller
