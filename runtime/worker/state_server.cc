#include "runtime/worker/state_server.h"

#include <system_error>
#include <utility>

namespace holdfast::runtime {

StateServer::~StateServer() {
  stop_.request_stop();
  std::list<Sender> senders;
  {
    const std::lock_guard lock(mutex_);
    line_.clear();
    senders.swap(senders_);  // swap() leaves each Sender where it is in memory: its thread uses it.
  }
  for (auto& sender : senders) sender.thread.join();
}

void StateServer::serve(StateOf state_of) {
  const std::lock_guard lock(mutex_);
  state_of_ = std::move(state_of);
}

void StateServer::add(io::PeerStream stream, Rank rank, Version version) {
  const std::lock_guard lock(mutex_);
  if (line_.size() >= kMostInLine) return;
  reap();
  line_.push_back({std::move(stream), rank, version});
  if (senders_.size() >= kMostAtOnce) return;
  auto& sender = senders_.emplace_back();
  try {
    sender.thread = std::thread([this, &sender] { work(sender); });
  } catch (const std::system_error&) {
    senders_.pop_back();
    if (senders_.empty()) line_.clear();  // No thread is left that would serve the line.
  }
}

// Joins the threads that are done. Requires: the mutex is held; a thread that is done needs it no
// more.
void StateServer::reap() {
  for (auto sender = senders_.begin(); sender != senders_.end();) {
    if (!sender->done) {
      ++sender;
      continue;
    }
    sender->thread.join();
    sender = senders_.erase(sender);
  }
}

void StateServer::work(Sender& sender) {
  std::unique_lock lock(mutex_);
  while (!line_.empty()) {
    auto [stream, rank, version] = std::move(line_.front());
    line_.pop_front();
    const auto state_of = state_of_;
    lock.unlock();
    const auto state =
        state_of ? state_of(rank, version)
                 : Result<StateFile>(Error{Blame::kWorld, "no state is served here as yet"});
    // A failure is not logged here: the peer notices and reports it.
    (void)send_state(stream, state, {stop_.get_token(), patience_});
    lock.lock();
  }
  sender.done = true;
}

}  // namespace holdfast::runtime
