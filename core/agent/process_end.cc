#include "core/agent/process_end.h"

namespace holdfast::agent {

using wire::Reason;

namespace {

// The exit code of a process that its agent has killed.
constexpr std::int32_t kKilled = 128 + 9;

}  // namespace

std::int32_t exit_code(const wire::Ending& ending) {
  switch (ending.kind) {
    case wire::Ending::Kind::kExited:
      return ending.code;
    case wire::Ending::Kind::kSignalled:
      return 128 + ending.code;
    case wire::Ending::Kind::kWasStopped:
    case wire::Ending::Kind::kWasSilent:
    case wire::Ending::Kind::kWasHung:
      return kKilled;
    default:
      return 255;
  }
}

bool ended_well(const wire::Ending& ending) {
  return ending == wire::Ending{wire::Ending::Kind::kExited, 0};
}

bool is_told(const Died& e) {
  return e.ending.kind != wire::Ending::Kind::kUnknown;
}

Reason how_it_ended(const Died& e, const std::string& node_id) {
  return {.kind = Reason::Kind::kProcessEnded,
          .ending = e.ending,
          .node_id = node_id,
          .detail = e.error};
}

Exit failed(const Died& e, const std::string& node_id) {
  const std::int32_t code = exit_code(e.ending);
  return {code != 0 ? code : 1, how_it_ended(e, node_id), node_id};
}

Exit too_often(const Place& place, const Options& options) {
  const std::int32_t code = exit_code(place.ending);
  return {code != 0 ? code : 1,
          {.kind = Reason::Kind::kTooOften,
           .ending = place.ending,
           .total = options.max_restarts,
           .version = static_cast<Version>(place.failures),
           .node_id = place.node_id,
           .detail = options.max_restarts_option},
          place.node_id};
}

Exit for_its_error(const Place& place, const Died& e) {
  if (e.is_final) return failed(e, place.node_id);
  return {exit_code(place.ending),
          {.kind = Reason::Kind::kTwice,
           .ending = place.ending,
           .version = place.error_version,
           .node_id = place.node_id,
           .detail = place.error},
          place.node_id};
}

}  // namespace holdfast::agent
