#include "core/controller/machine.h"

#include <algorithm>

#include "base/assert.h"
#include "base/text.h"

namespace holdfast::controller {

Machine::Machine(Options options, std::optional<wire::Record> stored)
    : options_(std::move(options)) {
  if (stored) {
    record_ = std::move(*stored);
  } else {
    record_.job = options_.job;
    record_.run_id = options_.run_id;
  }
}

Actions Machine::step(Instant now, const Event& event) {
  now_ = now;
  std::visit([&](const auto& e) { on(e); }, event);
  return std::exchange(actions_, {});
}

void Machine::emit(Action action) {
  // held_ begins with a Store that was handed out and not answered; the rest waits behind it.
  if (!held_.empty()) {
    held_.push_back(std::move(action));
    return;
  }
  if (std::holds_alternative<Store>(action)) held_.push_back(action);
  actions_.push_back(std::move(action));
}

void Machine::on(const Stored&) {
  HF_ASSERT(!held_.empty());
  held_.pop_front();
  while (!held_.empty()) {
    actions_.push_back(held_.front());
    if (std::holds_alternative<Store>(held_.front())) return;  // Handed out; the rest waits for it.
    held_.pop_front();
  }
}

void Machine::send(Link link, wire::Message message) {
  if (link != 0) emit(Send{link, std::move(message)});
}

void Machine::tell_agents(const wire::Message& message) {
  for (const auto& [link, state] : agents_) send(link, message);
}

void Machine::on(const Started&) {
  started_ = now_;
  waiting_since_ = now_;
  if (record_.ended) {
    phase_ = Phase::kEnded;
    emit(End{record_.success, record_.reason});
    return;
  }
  if (record_.ranks.empty()) return;
  for (Rank rank = 0; rank < world_size(); ++rank) {
    const auto& held = lease(rank);
    members_[held.node_id] = Member{.rank = rank,
                                    .pid = held.pid,
                                    .incarnation = held.incarnation,
                                    .attempt = held.attempt,
                                    .joined = record_.resumed,
                                    .heard = now_,
                                    .version = held.finished ? held.version : record_.version};
  }
  if (record_.resumed) {
    phase_ = Phase::kRunning;
  } else {
    // An order of the unfinished generation may have been carried out: ask anew, under a new
    // number.
    begin("the scheduler was started again in mid-recovery");
  }
}

void Machine::on(const Received& e) {
  if (const auto node = nodes_.find(e.link); node != nodes_.end()) {
    Member& member = members_.at(node->second);
    hear(member);  // Also while others are still to come: its lease runs from then on.
    // It lives after all. What it reported was struck out when it was lost: ask again.
    if (std::exchange(member.lost, false) && phase_ == Phase::kStopping) {
      send(e.link, wire::Stop{record_.generation, cause_});
    }
  }
  std::visit([&](const auto& message) { receive(e.link, message); }, e.message);
}

void Machine::on(const Closed& e) {
  agents_.erase(e.link);
  knocks_.erase(e.link);
  const auto node = nodes_.find(e.link);
  if (node == nodes_.end()) return;
  const std::string node_id = node->second;
  nodes_.erase(node);
  Member& member = members_.at(node_id);
  if (member.rank == kNoRank) {  // Before the ranks are given it just makes room.
    members_.erase(node_id);
    return;
  }
  member.link = 0;
  hear(member);
  // Without an agent nobody tells its exit code: a finished process that hung up has left.
  if (lease(member.rank).finished && member.attempt == 0) member.left = true;
  maybe_all_left();
}

void Machine::on(const ProvenDead& e) {
  const auto found = members_.find(e.node_id);
  if (found == members_.end() || found->second.incarnation != e.incarnation) return;
  const Rank rank = rank_of(e.node_id);
  const bool finished = rank != kNoRank && lease(rank).finished;
  died(e.node_id, "is gone from its host", finished, 0);
}

void Machine::on(const TimePassed&) {
  if (phase_ == Phase::kEnded) return;
  if (phase_ == Phase::kAssembling) {
    if (now_ >= started_ + options_.topology_timeout) {
      end(false, cat("only ", members_.size(), " of ", options_.world_size,
                     " workers came within the time limit (MS_TOPO_TIMEOUT): ", missing()));
    }
    return;
  }
  check_leases();
  if (waits_for_replacement() && now_ >= waiting_since_ + options_.replacement_timeout) {
    end(false, cat("the group could not be formed again within the time limit: ", missing()));
  }
}

std::optional<Instant> Machine::deadline() const {
  if (phase_ == Phase::kEnded) return std::nullopt;
  if (phase_ == Phase::kAssembling) return started_ + options_.topology_timeout;
  std::optional<Instant> next;
  const auto consider = [&](Instant at) { next = next ? std::min(*next, at) : at; };
  if (waits_for_replacement()) consider(waiting_since_ + options_.replacement_timeout);
  for (const auto& [node_id, member] : members_) {
    if (lease_runs(member)) consider(silent_at(member));
  }
  return next;
}

}  // namespace holdfast::controller
