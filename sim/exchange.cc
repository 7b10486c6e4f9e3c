#include "sim/exchange.h"

#include <algorithm>

#include "base/prng.h"
#include "base/text.h"
#include "sim/exchange_keys.h"

namespace holdfast::sim {
namespace {

// Longer than any wait of the scheduler. So it runs out only if a process has ended early, without
// the exchange.
constexpr Duration kExchangePatience = std::chrono::seconds(200);
constexpr std::uint64_t kFirstEnlisting = 1'000;

}  // namespace

std::uint64_t ValueExchange::own_value(const Worker& worker) {
  return derive(worker.process, 0x9ef);
}

bool ValueExchange::wants_to_exchange(const Worker& worker) const {
  if (!job_.setup.exchange || worker.exchange.over || worker.leaving) return false;
  if (worker.program == Program::kExchanging) return true;
  return worker.program == Program::kSpare && !has_all(worker);
}

bool ValueExchange::has_all(const Worker& worker) const {
  return worker.exchange.got.size() == static_cast<std::size_t>(job_.setup.ranks);
}

void ValueExchange::list(Index i, std::vector<Transition>& possible) const {
  const Worker& worker = job_.workers[i];
  if (job_.scheduler.machine && worker.exchange.link == kNone && wants_to_exchange(worker)) {
    possible.push_back({Transition::Kind::kAskConnect, i});
  }
}

std::optional<Instant> ValueExchange::ends(const Worker& worker) {
  if (worker.program != Program::kExchanging) return std::nullopt;
  return worker.exchange.since + kExchangePatience;
}

void ValueExchange::ask(Index index) {
  Worker& worker = job_.workers[index];
  worker.exchange.link = scheduler_.connect(index, kNone);
  job_.links.back().exchanges = true;
  for (Rank rank = 0; rank < job_.setup.ranks; ++rank) {
    if (worker.exchange.got.contains(rank)) continue;
    const auto id = kFirstGetId + static_cast<std::uint64_t>(rank);
    connections_.send_up(worker.exchange.link, wire::Get{.id = id, .keys = {key_of(rank)}});
  }
  if (worker.program == Program::kExchanging) put_own(worker);
}

void ValueExchange::put_own(Worker& worker) {
  job_.checkers.gave(worker.rank, own_value(worker));
  connections_.send_up(
      worker.exchange.link,
      wire::Put{.id = kPutId, .key = key_of(worker.rank), .value = cat(own_value(worker))});
  enlist(worker);
}

// Sends the last Put again if it was not answered; else asks for the newest version of the list.
void ValueExchange::enlist(Worker& worker) {
  auto& exchange = worker.exchange;
  if (exchange.enlisted) return;
  if (!exchange.answered) return connections_.send_up(exchange.link, exchange.enlisting);
  const bool looks = exchange.list.version == 0 && exchange.enlisting.id == 0;
  connections_.send_up(
      exchange.link,
      wire::Get{
          .id = kListId, .keys = {kList}, .at_once = looks, .newer_than = exchange.list.version});
}

void ValueExchange::hear_of_list(Worker& worker, const wire::Got& got) {
  auto& exchange = worker.exchange;
  if (!exchange.answered || exchange.enlisted) return;  // The answer came a second time.
  if (got.found) job_.checkers.saw_list(got.version, got.value);
  exchange.list = {kList, got.value, got.version};
  exchange.enlisting = {.id = std::max(exchange.enlisting.id + 1, kFirstEnlisting),
                        .key = kList,
                        .value = cat(got.value, own_value(worker), ' '),
                        .expected = got.version,
                        .writer = own_value(worker)};
  exchange.answered = false;
  connections_.send_up(exchange.link, exchange.enlisting);
}

void ValueExchange::begin(Index index) {
  Worker& worker = job_.workers[index];
  worker.program = Program::kExchanging;
  worker.exchange.since = job_.now;
  if (!job_.setup.exchange) return end(index);
  if (worker.exchange.link != kNone) put_own(worker);
}

void ValueExchange::end(Index index) {
  Worker& worker = job_.workers[index];
  worker.program = Program::kOpening;
  if (worker.exchange.link != kNone) connections_.client_is_gone(worker.exchange.link, false);
  worker.exchange.link = kNone;
}

void ValueExchange::hear(Index index, const wire::Message& message) {
  Worker& worker = job_.workers[index];
  if (std::holds_alternative<wire::JobEnded>(message)) {
    worker.exchange.over = true;
  } else if (const auto* kept = std::get_if<wire::Kept>(&message)) {
    auto& exchange = worker.exchange;
    if (kept->id == kPutId) exchange.kept = true;
    if (kept->id == exchange.enlisting.id && !std::exchange(exchange.answered, true)) {
      exchange.enlisted = kept->is_set;
      if (kept->is_set) job_.checkers.saw_list(kept->version, exchange.enlisting.value);
      enlist(worker);
    }
  } else if (const auto* got = std::get_if<wire::Got>(&message); got && got->id == kListId) {
    hear_of_list(worker, *got);
  } else if (got != nullptr) {
    const auto rank = static_cast<Rank>(got->id - kFirstGetId);
    if (got->key != key_of(rank))
      job_.checkers.violate("P36: the answer is not what was asked for");
    worker.exchange.got.insert(rank);
    job_.checkers.got(rank, std::stoull(got->value));
  }
  if (worker.program == Program::kExchanging && worker.exchange.kept && worker.exchange.enlisted &&
      has_all(worker)) {
    end(index);
  }
}

}  // namespace holdfast::sim
