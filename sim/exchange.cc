// The exchange of ranks before their sessions, by key-values of the scheduler, on a connection of
// its own. Each process puts a number of its own, and gets the numbers of all ranks. A spare asks
// before it has a rank. Each process also appends itself to the list, one value that all change.
#include <algorithm>

#include "base/prng.h"
#include "base/text.h"
#include "sim/world.h"
#include "wire/codec.h"

namespace holdfast::sim {
namespace {

// Longer than any wait of the scheduler. So it runs out only if a process has ended early, without
// the exchange.
constexpr Duration kPatience = std::chrono::seconds(200);
constexpr std::uint64_t kPutId = 1;
constexpr std::uint64_t kListId = 2;
constexpr std::uint64_t kFirstGetId = 3;  // The id for rank 0's value; the next one for rank 1's.
constexpr std::uint64_t kFirstEnlisting = 1'000;
constexpr const char* kList = "list";

std::string key_of(Rank rank) {
  return cat("of-", rank);
}

}  // namespace

std::uint64_t World::own_value(const Worker& worker) {
  return derive(worker.process, 0x9ef);
}

bool World::wants_to_exchange(const Worker& worker) const {
  if (!setup_.exchange || worker.exchange.over || worker.leaving) return false;
  if (worker.program == Program::kExchanging) return true;
  return worker.program == Program::kSpare && !has_all(worker);
}

bool World::has_all(const Worker& worker) const {
  return worker.exchange.got.size() == static_cast<std::size_t>(setup_.ranks);
}

void World::list_exchange(Index i) {
  const Worker& worker = workers_[i];
  if (scheduler_.machine && worker.exchange.link == kNone && wants_to_exchange(worker)) {
    possible_.push_back({Kind::kAskConnect, i});
  }
}

std::optional<Instant> World::exchange_ends(const Worker& worker) {
  if (worker.program != Program::kExchanging) return std::nullopt;
  return worker.exchange.since + kPatience;
}

void World::ask(Index index) {
  Worker& worker = workers_[index];
  worker.exchange.link = connect(index, kNone);
  links_.back().exchanges = true;
  for (Rank rank = 0; rank < setup_.ranks; ++rank) {
    if (worker.exchange.got.contains(rank)) continue;
    const auto id = kFirstGetId + static_cast<std::uint64_t>(rank);
    send_up(worker.exchange.link, wire::Get{.id = id, .keys = {key_of(rank)}});
  }
  if (worker.program == Program::kExchanging) put_own(worker);
}

void World::put_own(Worker& worker) {
  checkers_.gave(worker.rank, own_value(worker));
  send_up(worker.exchange.link,
          wire::Put{.id = kPutId, .key = key_of(worker.rank), .value = cat(own_value(worker))});
  enlist(worker);
}

// Sends the last Put again if it was not answered; else asks for the newest version of the list.
void World::enlist(Worker& worker) {
  auto& exchange = worker.exchange;
  if (exchange.enlisted) return;
  if (!exchange.answered) return send_up(exchange.link, exchange.enlisting);
  const bool looks = exchange.list.version == 0 && exchange.enlisting.id == 0;
  send_up(
      exchange.link,
      wire::Get{
          .id = kListId, .keys = {kList}, .at_once = looks, .newer_than = exchange.list.version});
}

void World::hear_of_list(Worker& worker, const wire::Got& got) {
  auto& exchange = worker.exchange;
  if (!exchange.answered || exchange.enlisted) return;  // The answer came a second time.
  if (got.found) checkers_.saw_list(got.version, got.value);
  exchange.list = {kList, got.value, got.version};
  exchange.enlisting = {.id = std::max(exchange.enlisting.id + 1, kFirstEnlisting),
                        .key = kList,
                        .value = cat(got.value, own_value(worker), ' '),
                        .expected = got.version,
                        .writer = own_value(worker)};
  exchange.answered = false;
  send_up(exchange.link, exchange.enlisting);
}

// Called once the worker's rank is known.
void World::begin_exchange(Index index) {
  Worker& worker = workers_[index];
  worker.program = Program::kExchanging;
  worker.exchange.since = now_;
  if (!setup_.exchange) return end_exchange(index);
  if (worker.exchange.link != kNone) put_own(worker);
}

void World::end_exchange(Index index) {
  Worker& worker = workers_[index];
  worker.program = Program::kOpening;
  if (worker.exchange.link != kNone) client_is_gone(worker.exchange.link, false);
  worker.exchange.link = kNone;
}

void World::hear_of_exchange(Index index, const wire::Message& message) {
  Worker& worker = workers_[index];
  if (std::holds_alternative<wire::JobEnded>(message)) {
    worker.exchange.over = true;
  } else if (const auto* kept = std::get_if<wire::Kept>(&message)) {
    auto& exchange = worker.exchange;
    if (kept->id == kPutId) exchange.kept = true;
    if (kept->id == exchange.enlisting.id && !std::exchange(exchange.answered, true)) {
      exchange.enlisted = kept->is_set;
      if (kept->is_set) checkers_.saw_list(kept->version, exchange.enlisting.value);
      enlist(worker);
    }
  } else if (const auto* got = std::get_if<wire::Got>(&message); got && got->id == kListId) {
    hear_of_list(worker, *got);
  } else if (got != nullptr) {
    const auto rank = static_cast<Rank>(got->id - kFirstGetId);
    if (got->key != key_of(rank)) checkers_.violate("P36: the answer is not what was asked for");
    worker.exchange.got.insert(rank);
    checkers_.got(rank, std::stoull(got->value));
  }
  if (worker.program == Program::kExchanging && worker.exchange.kept && worker.exchange.enlisted &&
      has_all(worker)) {
    end_exchange(index);
  }
}

// Checks that what the scheduler sends about a value is durable.
void World::check_told(Index link, const wire::Message& message) {
  const auto is_durable = [&](const std::string& key, wire::KeyVersion version,
                              const std::string* value) {
    const auto found = durable_values_.find(key);
    const bool there = found != durable_values_.end() && found->second.version >= version;
    const bool same = there && (value == nullptr || found->second.version > version ||
                                found->second.value == *value);
    if (!same) {
      checkers_.violate("P36: the scheduler told of a value that a crash could make it forget");
    }
  };
  if (const auto* got = std::get_if<wire::Got>(&message); got && got->found) {
    is_durable(got->key, got->version, &got->value);
  } else if (const auto* kept = std::get_if<wire::Kept>(&message); kept && kept->version != 0) {
    const Worker& worker = workers_[links_[link].worker];
    is_durable(kept->id == kPutId ? key_of(worker.rank) : kList, kept->version, nullptr);
  }
}

// Encodes and decodes a value, as the journal does when it writes and reads it.
template <class T>
void World::write_down(T& value, Result<T> (*decode)(std::string_view)) {
  auto read = decode(wire::encode(value));
  if (!read) return checkers_.violate(cat("P53: ", read.error().what));
  value = *std::move(read);
}

void World::make_durable(controller::Store& store) {
  if (store.formation) {
    auto roster = std::exchange(store.formation->roster, {});
    write_down(*store.formation, wire::decode_formation);
    for (auto& seat : roster) write_down(seat, wire::decode_seat);
    store.formation->roster = std::move(roster);
  }
  for (auto& [rank, seat] : store.seats) write_down(seat, wire::decode_seat);
  if (store.formation && !durable_) durable_.emplace();
  if (durable_) controller::apply(store, *durable_);
  for (auto& pair : store.kept) durable_values_[pair.key] = std::move(pair);
  for (const auto& last : store.writers) durable_writers_[last.writer] = last;
}

}  // namespace holdfast::sim
