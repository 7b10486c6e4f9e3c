#include "runtime/worker/neighbours.h"

#include <cstdio>
#include <utility>

#include "base/text.h"
#include "os/host.h"
#include "runtime/jobs/membership.h"

namespace holdfast::runtime {

std::string Neighbours::listen(const std::string& address) {
  const std::lock_guard lock(mutex_);
  if (links_) return links_->endpoint();
  if (address.empty() || os::is_loopback(address)) return {};
  auto started = DataLinks::start(
      {.address = address,
       .membership = [settings =
                          settings_] { return membership_of(settings, wire::PeerKind::kPeer); },
       .damaged =
           [told = damaged_](Rank peer, const std::string& at) {
             const std::lock_guard told_lock(told->mutex);
             if (told->call) told->call(peer, at);
           }});
  if (!started) {
    std::fprintf(stderr, "holdfast: workers of other hosts can not reach this one: %s\n",
                 started.error().what.c_str());
    return {};
  }
  links_ = *std::move(started);
  links_->serve_state(state_of_);
  return links_->endpoint();
}

void Neighbours::placed(std::uint64_t run_id, Rank rank) {
  const std::lock_guard lock(mutex_);
  if (run_id == run_id_ && rank == rank_) return;  // The scheduler says it on every connection.
  run_id_ = run_id;
  rank_ = rank;
  if (links_) links_->set_peers(run_id, rank, {});
}

void Neighbours::meet(const std::vector<PeerPlace>& peers) {
  const std::lock_guard lock(mutex_);
  layout_ = {};
  if (!links_ || peers.empty()) return;
  endpoints_.clear();
  for (const auto& peer : peers) {
    layout_.host_of.push_back(static_cast<int>(peer.host));
    layout_.domain_of.push_back(static_cast<int>(peer.domain));
    endpoints_.push_back(peer.endpoint);
  }
  layout_.links = links_;
  links_->set_peers(run_id_, rank_, endpoints_);
}

collective::Layout Neighbours::layout() const {
  const std::lock_guard lock(mutex_);
  return layout_;
}

std::size_t Neighbours::cut_links() {
  const std::lock_guard lock(mutex_);
  return links_ ? links_->cut() : 0;
}

void Neighbours::begin_repair() {
  const std::lock_guard lock(mutex_);
  repair_ = std::stop_source();
}

void Neighbours::stop_repair() {
  const std::lock_guard lock(mutex_);
  repair_.request_stop();
}

std::stop_token Neighbours::repair() const {
  const std::lock_guard lock(mutex_);
  return repair_.get_token();
}

wire::Location Neighbours::location_of(Rank rank) const {
  const std::lock_guard lock(mutex_);
  const std::string& endpoint = endpoints_.at(static_cast<std::size_t>(rank));
  return {.holder = rank, .host = endpoint.substr(0, endpoint.rfind(':')), .endpoint = endpoint};
}

Status Neighbours::fetch_state(const wire::Location& source, Rank rank, Version version,
                               StateSink& sink, const std::stop_token& stop) {
  std::shared_ptr<DataLinks> links;
  {
    const std::lock_guard lock(mutex_);
    links = links_;
  }
  if (links) return links->fetch_state(source.endpoint, rank, version, sink, stop);
  return Error{Blame::kWorld, cat("the state of rank ", rank, " is on host ", source.host,
                                  ", which this process has no way to reach")};
}

void Neighbours::serve_state(StateServer::StateOf state_of) {
  const std::lock_guard lock(mutex_);
  state_of_ = std::move(state_of);
  if (links_) links_->serve_state(state_of_);
}

}  // namespace holdfast::runtime
