// For tests: a status as a scheduler gives it.
#pragma once

#include <string>

#include "apps/json.h"
#include "base/text.h"

namespace holdfast::apps::web {

inline Json rank_for_test(int rank, double step, const std::string& state = "training") {
  return {{"rank", rank},        {"role", "worker"},  {"node_id", cat(rank)}, {"pid", 4000 + rank},
          {"host", "host1"},     {"state", state},    {"version", step},      {"step_age_s", 0.25},
          {"own_step_ms", 30.5}, {"between_ms", 1.5}, {"loss", 0.5 + rank}};
}

inline Json report_for_test(int number, const std::string& kind = "killed") {
  return {{"recovery", number},
          {"cause", "rank 1 (process 5) was killed by signal 9 (SIGKILL)"},
          {"kind", kind},
          {"version", 90},
          {"steps_lost", 2},
          {"stop_ms", 1.0},
          {"plan_ms", 3.0},
          {"repair_ms", 3.5},
          {"resume_ms", 4.0},
          {"first_step_ms", 14.0},
          {"over_ms", 14.0},
          {"at", "2026-11-29T13:45:12.345Z"},
          {"successors", {{{"rank", 1}, {"pid", 7}, {"host", "host1"}, {"after_ms", 3.1}}}}};
}

inline Json status_for_test(double step, int ranks = 4) {
  Json all = Json::array();
  for (int rank = 0; rank < ranks; ++rank) all.push_back(rank_for_test(rank, step));
  return {{"job", "digits"},
          {"state", "running"},
          {"generation", 2},
          {"version", step},
          {"world_size", ranks},
          {"servers", 0},
          {"tls", false},
          {"recoveries", 1},
          {"cause", ""},
          {"reason", ""},
          {"ranks", all},
          {"spares", {{{"host", "host1"}, {"node_id", nullptr}, {"state", "ready"}}}},
          {"rehearsals", Json::array()},
          {"holds_up", Json::array()},
          {"remarks", Json::array()},
          {"snapshots", {{{"version", 80U}, {"name", "step-80"}}}},
          {"without_place", Json::array()},
          {"recovery_reports", {report_for_test(1)}}};
}

}  // namespace holdfast::apps::web
