#include "runtime/worker/fetch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "io/loop.h"
#include "runtime/worker/neighbours.h"
#include "runtime/worker/ownership.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Duration kBetweenFetches = 100ms;

}  // namespace

Status take_from_predecessor(Worker& worker, const std::string& path) {
  if (worker.solo()) return {};
  // Short pauses: the predecessor's threads mostly need only a moment to get a core to exit on.
  const auto pause = [&worker, wait = Duration(100us)]() mutable -> Status {
    return worker.pause(std::exchange(wait, std::min<Duration>(2 * wait, 2ms)));
  };
  return take_ownership(path, pause, worker.settings().replacement_timeout);
}

Status fetch(Worker& worker, const wire::Location& source, Rank rank, Version version,
             StateSink& sink, std::optional<std::stop_token> stop) {
  Neighbours& neighbours = worker.neighbours();
  const std::stop_token until = stop ? *std::move(stop) : neighbours.repair();
  const Instant end = io::Loop::now() + worker.settings().replacement_timeout;
  for (;;) {
    const auto came = neighbours.fetch_state(source, rank, version, sink, until);
    if (came || sink.has_refused()) return came;
    if (until.stop_requested() || io::Loop::now() >= end) return came;
    if (const auto paused = worker.pause(kBetweenFetches); !paused) return paused;
  }
}

}  // namespace holdfast::runtime
