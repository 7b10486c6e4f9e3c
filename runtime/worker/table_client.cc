#include "runtime/worker/table_client.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/digest.h"
#include "base/prng.h"
#include "base/text.h"
#include "runtime/worker/table_setup.h"
#include "table/saved.h"

namespace holdfast::runtime {

using collective::Outcome;

namespace {

// The servers may have another working directory.
Result<std::string> absolute_of(const std::string& folder) {
  std::error_code none;
  std::string path = std::filesystem::absolute(folder, none).lexically_normal().string();
  if (!none && !folder.empty() && path.size() < kLongestFolder) return path;
  return Error{Blame::kUser, cat("saved tables can not be in '", folder,
                                 "': a folder is expected whose path is shorter than ",
                                 kLongestFolder, " bytes")};
}

collective::Verdict no_group() {
  return {Outcome::kAborted,
          "there is no whole generation now: tables are used between the begin of a step and its "
          "end, and after a fault the step is void"};
}

}  // namespace

TableClient::TableClient(Worker& worker, const Identity& identity,
                         std::shared_ptr<collective::CurrentGeneration> current)
    : worker_(worker),
      rank_(identity.rank),
      run_id_(identity.run_id),
      workers_(identity.world_size),
      servers_(identity.servers),
      current_(std::move(current)) {}

Result<std::size_t> TableClient::define(table::Spec spec) {
  if (is_published_) {
    return Error{Blame::kUser, cat("table ", spec.name, " comes too late: all tables have to be ",
                                   "defined before the first step")};
  }
  specs_.push_back(std::move(spec));
  if (Status good = table::check(specs_); !good) {
    specs_.pop_back();
    return good.error();
  }
  arguments_.emplace_back();
  return specs_.size() - 1;
}

Status TableClient::set(std::size_t t, double learning_rate, double weight_decay) {
  table::Arguments arguments = arguments_.at(t);
  arguments.learning_rate = learning_rate;
  arguments.weight_decay = weight_decay;
  if (Status good = table::check(specs_[t], arguments); !good) return good;
  arguments_[t] = arguments;
  return {};
}

Status TableClient::publish() {
  if (std::exchange(is_published_, true)) return {};
  const std::string text = to_text(TableSetup{specs_, from_});
  if (Status put = worker_.key_values().put(kTables, text); !put) return put;
  const auto there = worker_.key_values().get({kTables}, config::kNever);
  if (!there) return there.error();
  const auto first = setup_in(*there ? (*there)->value : std::string());
  if (!first) return first.error();
  std::string other = table::difference(first->specs, specs_);
  // A successor may find what was saved meanwhile. The rows are there by then.
  if (other.empty() && first->from != from_ && worker_.generation() <= 1) {
    other = cat("they begin with the rows in '", first->from, "' there and in '", from_, "' here");
  }
  if (other.empty()) return {};
  return Error{Blame::kUser,
               cat("rank ", rank_, " (here) defines other tables than another worker (there): ",
                   other, "; all workers have to define the same")};
}

TableClient::Batch TableClient::batch_of(std::span<const std::uint64_t> keys) const {
  const auto servers = static_cast<std::size_t>(servers_);
  constexpr std::uint32_t kNone = ~0U;
  Batch batch{.keys = {}, .places = {}, .counts = std::vector<std::uint64_t>(servers)};
  std::size_t slots = 16;
  while (slots < 2 * keys.size()) slots *= 2;
  std::vector<std::uint32_t> slot_of(slots, kNone);  // An open hash table of places in `first`.
  std::vector<std::uint64_t> first;                  // The keys in the order in which they come.
  std::vector<Rank> of;                              // The server of each.
  batch.places.reserve(keys.size());
  for (const std::uint64_t key : keys) {
    std::size_t at = mix(key) % slots;
    while (slot_of[at] != kNone && first[slot_of[at]] != key) at = (at + 1) % slots;
    if (slot_of[at] == kNone) {
      slot_of[at] = static_cast<std::uint32_t>(first.size());
      first.push_back(key);
      of.push_back(server_of(key, servers_));
      ++batch.counts[static_cast<std::size_t>(of.back())];
    }
    batch.places.push_back(slot_of[at]);
  }
  std::vector<std::uint64_t> next(servers);  // Where the next key of each server goes.
  for (std::size_t s = 1; s < servers; ++s) next[s] = next[s - 1] + batch.counts[s - 1];
  std::vector<std::uint32_t> moved(first.size());
  batch.keys.resize(first.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    moved[i] = static_cast<std::uint32_t>(next[static_cast<std::size_t>(of[i])]++);
    batch.keys[moved[i]] = first[i];
  }
  for (std::uint32_t& place : batch.places) place = moved[place];
  return batch;
}

collective::Verdict TableClient::pull(std::size_t t, std::span<const std::uint64_t> keys,
                                      std::span<float> out) {
  const std::size_t values = specs_.at(t).values;
  HF_ASSERT(out.size() == keys.size() * values);
  if (!everyone_) return no_group();
  const Batch batch = batch_of(keys);
  TableExchange exchange(*everyone_, workers_, specs_, current_->options());
  std::vector<float> rows(batch.keys.size() * values);
  collective::Verdict told = exchange.meet({TableCall::kPull, t, 0, batch.counts});
  if (told.outcome != Outcome::kDone) return told;
  told = exchange.give(std::as_bytes(std::span(batch.keys)), sizeof(std::uint64_t));
  if (told.outcome != Outcome::kDone) return told;
  told = exchange.answer(std::as_writable_bytes(std::span(rows)), values * sizeof(float));
  if (told.outcome != Outcome::kDone) return told;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    std::copy_n(rows.data() + batch.places[i] * values, values, out.data() + i * values);
  }
  return {};
}

Result<collective::Verdict> TableClient::push(std::size_t t, std::span<const std::uint64_t> keys,
                                              std::span<const float> gradients) {
  return send(TableCall::kPush, t, keys, gradients);
}

Result<collective::Verdict> TableClient::assign(std::size_t t, std::span<const std::uint64_t> keys,
                                                std::span<const float> values) {
  return send(TableCall::kAssign, t, keys, values);
}

Result<collective::Verdict> TableClient::send(TableCall call, std::size_t t,
                                              std::span<const std::uint64_t> keys,
                                              std::span<const float> given) {
  const char* const what = call == TableCall::kPush ? "gradient" : "first value";
  const std::size_t values = specs_.at(t).values;
  HF_ASSERT(given.size() == keys.size() * values);
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (std::isfinite(given[i])) continue;
    return Error{Blame::kUser, cat("rank ", rank_, " pushes a ", what, " to table ", specs_[t].name,
                                   " for key ", keys[i / values], " that is no finite number")};
  }
  sent_.resize(specs_.size());
  if (sent_[t] != TableCall::kNone && sent_[t] != call) {
    return Error{Blame::kUser, cat("table ", specs_[t].name, " gets both first values and ",
                                   "gradients in one step: only one is possible")};
  }
  if (!everyone_) return no_group();
  const Batch batch = batch_of(keys);
  std::vector<float> sums(batch.keys.size() * values);
  std::vector<bool> has(batch.keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t place = batch.places[i];
    float* const sum = sums.data() + place * values;
    const float* const more = given.data() + i * values;
    if (has[place] && call == TableCall::kAssign) {
      return Error{Blame::kUser, cat("rank ", rank_, " gives the row of key ", keys[i],
                                     " of table ", specs_[t].name, " its first values twice")};
    }
    if (has[place]) {
      for (std::size_t k = 0; k < values; ++k) sum[k] += more[k];
    } else {
      std::copy_n(more, values, sum);
      has[place] = true;
    }
  }
  TableExchange exchange(*everyone_, workers_, specs_, current_->options());
  sent_[t] = call;
  collective::Verdict told = exchange.meet({call, t, 0, batch.counts});
  if (told.outcome != Outcome::kDone) return told;
  told = exchange.give(std::as_bytes(std::span(batch.keys)), sizeof(std::uint64_t));
  if (told.outcome != Outcome::kDone) return told;
  return exchange.give(std::as_bytes(std::span(sums)), values * sizeof(float));
}

Status TableClient::load_from(const std::string& folder) {
  if (is_published_) {
    return Error{Blame::kUser, cat("the tables saved in ", folder,
                                   " are to be loaded, but the first step has begun")};
  }
  auto absolute = absolute_of(folder);
  if (!absolute) return absolute.error();
  from_ = *std::move(absolute);
  return {};
}

Result<collective::Verdict> TableClient::save(const std::string& folder, Version n) {
  const auto path = absolute_of(folder);
  if (!path) return path.error();
  if (!everyone_) return no_group();
  std::string text = *path;
  text.resize(kLongestFolder);
  const auto bytes = std::as_writable_bytes(std::span(text));
  TableExchange exchange(*everyone_, workers_, specs_, current_->options());
  collective::Verdict told = exchange.meet({TableCall::kSave, n, digest(bytes), {}});
  if (told.outcome == Outcome::kDone) told = exchange.tell(bytes);
  std::string error;
  if (told.outcome == Outcome::kDone) told = exchange.say("", error);
  if (told.outcome == Outcome::kDone && error.empty()) {
    const Status written =
        rank_ != 0 ? Status() : table::save_manifest(*path, {specs_, run_id_, n, servers_});
    told = exchange.say(written ? std::string() : written.error().what, error);
  }
  if (told.outcome != Outcome::kDone || error.empty()) return told;
  return Error{Blame::kWorld, cat("tables could not be saved: ", error)};
}

Status TableClient::evict(std::size_t t, std::uint64_t steps) {
  if (steps == 0) {
    return Error{Blame::kUser,
                 cat("rows of table ", specs_.at(t).name, " are to be evicted that 0 ",
                     "steps have not updated: at least 1 is expected")};
  }
  evicts_[t] = steps;
  return {};
}

// If it fails, the group has ended, and the servers have given the step up.
void TableClient::give_up() {
  evicts_.clear();
  if (std::exchange(sent_, {}).empty() || !everyone_) return;
  TableExchange exchange(*everyone_, workers_, specs_, current_->options());
  (void)exchange.meet({.call = TableCall::kGiveUp});
}

collective::Verdict TableClient::end_step(Version n) {
  if (!everyone_) return no_group();
  std::vector<table::Arguments> arguments(specs_.size());
  for (std::size_t t = 0; t < sent_.size(); ++t) {
    if (sent_[t] == TableCall::kPush) arguments[t] = arguments_[t];
    if (sent_[t] == TableCall::kAssign) arguments[t].assigns = 1;
  }
  sent_.clear();
  // The servers make a clock of it (Server::stage).
  for (const auto& [t, steps] : evicts_) arguments[t].evicts_before = steps;
  evicts_.clear();
  const auto bytes = std::as_writable_bytes(std::span(arguments));
  TableExchange exchange(*everyone_, workers_, specs_, current_->options());
  collective::Verdict told = exchange.meet({TableCall::kEndStep, n, digest(bytes), {}});
  if (told.outcome != Outcome::kDone || bytes.empty()) return told;
  return exchange.tell(bytes);
}

}  // namespace holdfast::runtime
