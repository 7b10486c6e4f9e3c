#include "runtime/worker/table_exchange.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "collective/waiting.h"

namespace holdfast::runtime {

using collective::Outcome;

namespace {

constexpr std::uint64_t kMostRows = std::uint64_t{1} << 28;  // Of a worker, of one server.
constexpr std::size_t kHead = 3;  // call, table, digest; then the counts.

}  // namespace

TableExchange::TableExchange(collective::Group& everyone, Rank workers,
                             const std::vector<table::Spec>& specs,
                             const collective::CurrentGeneration::Options& options)
    : all_(everyone), specs_(specs), options_(options), workers_(workers) {}

std::string TableExchange::in_words(const TableWord& word) const {
  const std::string name =
      word.table < specs_.size() ? specs_[word.table].name : cat("number ", word.table);
  switch (word.call) {
    case TableCall::kPull:
      return cat("pulls rows of table ", name);
    case TableCall::kPush:
      return cat("pushes gradients to table ", name);
    case TableCall::kAssign:
      return cat("gives rows of table ", name, " their first values");
    case TableCall::kSave:
      return "saves the tables";
    case TableCall::kEndStep:
      return "ends the step";
    case TableCall::kGiveUp:
      return "gives the step up";
    case TableCall::kNone:
      break;
  }
  return "does nothing";
}

template <class Operation>
collective::Verdict TableExchange::run(Operation operation) {
  Outcome outcome{};
  {
    const collective::Waiting waiting;
    const collective::TeamWait wait(options_.team_waits);
    outcome = operation();
  }
  if (options_.team_operations) ++*options_.team_operations;
  if (outcome == Outcome::kDone) return {};
  if (outcome != Outcome::kAborted) return {outcome, all_.why()};
  return {outcome,
          "a process of the job failed before all ranks had done this; the step will be "
          "void"};
}

collective::Verdict TableExchange::meet(const TableWord& mine) {
  const auto servers = static_cast<std::size_t>(this->servers());
  const std::size_t size = kHead + servers;
  std::vector<std::uint64_t> own{static_cast<std::uint64_t>(mine.call), mine.table, mine.digest};
  own.insert(own.end(), mine.counts.begin(), mine.counts.end());
  own.resize(size);
  std::vector<std::uint64_t> all(size * static_cast<std::size_t>(all_.world_size()));
  collective::Verdict told = run([&] {
    return all_.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  });
  if (told.outcome != Outcome::kDone) return told;
  words_.clear();
  for (Rank worker = 0; worker < workers_; ++worker) {
    const auto* at = all.data() + static_cast<std::size_t>(worker) * size;
    words_.push_back({static_cast<TableCall>(at[0]), at[1], at[2], {at + kHead, at + size}});
  }
  return check();
}

collective::Verdict TableExchange::check() const {
  const TableWord& first = words_.front();
  for (Rank worker = 0; worker < workers_; ++worker) {
    const TableWord& word = words_[static_cast<std::size_t>(worker)];
    const bool is_known = word.call > TableCall::kNone && word.call <= TableCall::kGiveUp;
    const auto most = std::max_element(word.counts.begin(), word.counts.end());
    if (is_known && *most <= kMostRows) continue;
    return {Outcome::kMismatch,
            cat("rank ", worker, " asks the servers for what they do not know, or for more than ",
                kMostRows, " rows at once: start all processes with the same release of Holdfast, ",
                "and take smaller batches")};
  }
  for (Rank worker = 1; worker < workers_; ++worker) {
    const TableWord& other = words_[static_cast<std::size_t>(worker)];
    if (other.call != first.call || other.table != first.table) {
      return {Outcome::kMismatch,
              cat("rank 0 ", in_words(first), ", and rank ", worker, ' ', in_words(other),
                  ": all workers have to use the tables alike, in the same order")};
    }
    if (other.digest != first.digest && first.call == TableCall::kSave) {
      return {Outcome::kMismatch, cat("rank ", worker, " saves the tables in another folder than ",
                                      "rank 0: all workers have to name the same")};
    }
    if (other.digest != first.digest) {
      return {
          Outcome::kMismatch,
          cat("rank ", worker, " has other learning rates or weight decays for the tables than ",
              "rank 0 in this step, or evicts others of their rows: all workers have to do the "
              "same")};
    }
  }
  return {};
}

std::uint64_t TableExchange::before(Rank worker, Rank server) const {
  std::uint64_t rows = 0;
  for (Rank s = 0; s < server; ++s) rows += count(worker, s);
  return rows;
}

collective::Verdict TableExchange::give(std::span<const std::byte> mine, std::size_t bytes) {
  std::vector<std::byte> of_others;
  for (Rank worker = 0; worker < workers_; ++worker) {
    const std::uint64_t all = before(worker, servers()) * bytes;
    if (all == 0) continue;
    const bool is_mine = worker == all_.rank();
    if (!is_mine) of_others.resize(all);
    // broadcast() only reads the root's bytes.
    const std::span<std::byte> data =
        is_mine ? std::span(const_cast<std::byte*>(mine.data()), mine.size())
                : std::span(of_others);
    collective::Verdict told = run([&] { return all_.broadcast(data, worker); });
    if (told.outcome != Outcome::kDone) return told;
  }
  return {};
}

collective::Verdict TableExchange::take(const std::vector<Rank>& servers, std::size_t bytes,
                                        Came& came) {
  came.assign(servers.size(), {});
  std::vector<std::byte> all;
  for (Rank worker = 0; worker < workers_; ++worker) {
    all.resize(before(worker, this->servers()) * bytes);
    if (all.empty()) continue;
    collective::Verdict told = run([&] { return all_.broadcast(std::span(all), worker); });
    if (told.outcome != Outcome::kDone) return told;
    for (std::size_t i = 0; i < servers.size(); ++i) {
      const auto part = std::span(all).subspan(before(worker, servers[i]) * bytes,
                                               count(worker, servers[i]) * bytes);
      came[i].insert(came[i].end(), part.begin(), part.end());
    }
  }
  return {};
}

collective::Verdict TableExchange::answer(std::span<std::byte> rows, std::size_t bytes) {
  std::vector<std::byte> copy;
  std::size_t at = 0;  // In this worker's rows.
  for (Rank server = 0; server < servers(); ++server) {
    std::uint64_t total = 0;
    std::uint64_t from = 0;  // Where the part for this worker begins.
    for (Rank worker = 0; worker < workers_; ++worker) {
      if (worker == all_.rank()) from = total * bytes;
      total += count(worker, server);
    }
    if (total == 0) continue;
    const bool is_mine = workers_ + server == all_.rank();
    if (!is_mine) copy.resize(total * bytes);
    const std::span<std::byte> data = is_mine ? rows : std::span<std::byte>(copy);
    collective::Verdict told = run([&] { return all_.broadcast(data, workers_ + server); });
    if (told.outcome != Outcome::kDone) return told;
    if (serves()) continue;
    const std::size_t mine = count(all_.rank(), server) * bytes;
    if (mine > 0) std::memcpy(rows.data() + at, data.data() + from, mine);
    at += mine;
  }
  return {};
}

collective::Verdict TableExchange::say(const std::string& mine, std::string& first) {
  std::string own = mine.substr(0, kLongestSentence);
  own.resize(kLongestSentence);
  std::string all(kLongestSentence * static_cast<std::size_t>(all_.world_size()), '\0');
  collective::Verdict told = run([&] {
    return all_.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  });
  first.clear();
  for (std::size_t at = 0; at < all.size() && first.empty(); at += kLongestSentence) {
    const std::string sentence = all.substr(at, kLongestSentence);
    first = sentence.substr(0, sentence.find('\0'));
  }
  return told;
}

collective::Verdict TableExchange::tell(std::span<std::byte> bytes) {
  return run([&] { return all_.broadcast(bytes, 0); });
}

}  // namespace holdfast::runtime
