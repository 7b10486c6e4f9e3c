// StateServer: sends states to other workers, each in a thread of its own, so that neither the
// training nor a loop waits for a disk or a peer.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <stop_token>
#include <thread>

#include "runtime/worker/state_transfer.h"

namespace holdfast::runtime {

// Any thread.
class StateServer {
 public:
  // Opens the state of a rank at a version. Called in threads of the server, several at a time. The
  // peer is told the sentence of an error.
  using StateOf = std::function<Result<StateFile>(Rank, Version)>;

  static constexpr std::size_t kMostAtOnce = 8;
  static constexpr std::size_t kMostInLine = 256;

  explicit StateServer(Duration patience) : patience_(patience) {}
  ~StateServer();  // Ends what is under way.
  StateServer(const StateServer&) = delete;
  StateServer& operator=(const StateServer&) = delete;

  // From here on states come from `state_of`. Null: no state is served. Calls of the former
  // function may still be under way.
  void serve(StateOf state_of);
  // Sends the state through `stream`, at once or in its turn. Closes `stream` if too many wait, or
  // no thread can be started.
  void add(io::PeerStream stream, Rank rank, Version version);

 private:
  struct Asked {
    io::PeerStream stream;
    Rank rank;
    Version version;
  };
  struct Sender {
    std::thread thread;
    bool done = false;
  };
  void reap();
  void work(Sender& sender);

  const Duration patience_;
  std::stop_source stop_;
  std::mutex mutex_;  // Guards what follows.
  StateOf state_of_;
  std::deque<Asked> line_;
  std::list<Sender> senders_;
};

}  // namespace holdfast::runtime
