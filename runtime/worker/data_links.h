// DataLinks: a worker's streams to the other workers of its job, for what they exchange and for
// their states. It listens on an address of its own; both ends of each connection have proven that
// they belong to the job (io/peer_stream.h), and have said what it is for (peer_words.h).
//
// It has a thread of its own: handshakes under TLS take milliseconds each, and come many at a time
// when a group forms; the worker's control loop has heartbeats to send meanwhile. The thread sleeps
// otherwise. A link that make() returns belongs to the caller's threads alone, and outlasts this
// object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "collective/links.h"
#include "io/connection.h"
#include "runtime/worker/state_server.h"

namespace holdfast::runtime {

// Any thread. A forked child, which has none of its threads, may only destroy it.
class DataLinks final : public collective::Links {
 public:
  struct Options {
    // This host's numeric address, as the others reach it, and not "0.0.0.0". Any free port is
    // taken.
    std::string address;
    // Makes the membership by which this worker proves itself, of kind kPeer:
    // membership_of(settings, kPeer). Called in any thread, before each try. Under TLS it has a
    // client's context.
    std::function<Result<io::Membership>()> membership;
    // Logs what no call can report (refused streams), in the thread of this object. Null: to
    // stderr.
    std::function<void(const std::string&)> say = nullptr;
    // Told that bytes of a link to this rank, at this address, were damaged on the way, before it
    // is cut. Any thread. Null: nobody.
    std::function<void(Rank, const std::string&)> damaged = nullptr;
    io::Door door = {};
    // How long a peer may take to answer when asked for a state, and how long its bytes may pause.
    Duration patience = std::chrono::seconds(15);
  };

  // Errors: the address is not this host's; no thread can be had; those of `membership`.
  static Result<std::unique_ptr<DataLinks>> start(Options options);
  // Ends all calls under way, with an error, and waits for them.
  ~DataLinks() override;

  // Where this worker listens, for the others: "10.0.0.3:40123", "[fd00::3]:40123".
  [[nodiscard]] const std::string& endpoint() const;

  // `endpoints`: those of all ranks of the world, by rank, with this one's own; "": not known yet.
  // Replaces all former ones, also while links are being made: each further try uses the new ones.
  // Closes the streams that wait here and are of another run or for another rank.
  void set_peers(std::uint64_t run_id, Rank me, std::vector<std::string> endpoints);

  // Requires: set_peers() was called; no two of `wanted` have the same peer and channel. A peer
  // that does not listen yet is tried again until the deadline. Fails for a generation older than
  // the group's newest one here; a stream that comes for such a generation is closed.
  //
  // Under TLS bytes may have come that poll() does not know of, also before the first read: read a
  // Link until it wants to read, and only then poll() its descriptor.
  [[nodiscard]] Result<std::vector<std::unique_ptr<collective::Link>>> make(
      const std::string& group, Generation generation, std::span<const collective::Wanted> wanted,
      Deadline deadline, const std::stop_token& cancel) override;

  // For drills: cuts all links that make() has returned, and ends the streams that wait here, as a
  // cable's fault of a moment does. Returns how many there were.
  std::size_t cut();

  // Sets the states that other workers can fetch from here; null: none.
  void serve_state(StateServer::StateOf state_of);
  // Has the worker at `endpoint` send the state of `rank` at `version` to `sink` (receive_state()).
  // One try. Errors: `cancel`; the worker can not be reached, has no such state, or sends nothing
  // for `patience`; those of the sink.
  [[nodiscard]] Status fetch_state(const std::string& endpoint, Rank rank, Version version,
                                   StateSink& sink, const std::stop_token& cancel);

 private:
  struct Impl;
  explicit DataLinks(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::runtime
