#include "apps/reference_options.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace holdfast::apps {
namespace {

constexpr std::int64_t kMostSeconds = 31'536'000;  // The limit of MS_TOPO_TIMEOUT.

// An option of MindSpore's with a fixed effect: it is accepted with values that ask for what
// happens anyway, and refused with others.
struct Fixed {
  const char* name;
  std::string ReferenceOptions::*value;
  std::vector<std::string_view> taken;
  const char* reason;
};

const std::vector<Fixed>& fixed() {
  using R = ReferenceOptions;
  static const std::vector<Fixed> all = {
      {"--bind_core",
       &R::bind_core,
       {"False", "false"},
       "processes are not bound to cores; start msrun under taskset to bind the whole job"},
      {"--bind_numa",
       &R::bind_numa,
       {"False", "false"},
       "processes are not bound to memory nodes; start msrun under numactl to bind the whole job"},
      {"--sim_level", &R::sim_level, {"-1"}, "there are no dry runs"},
      {"--sim_rank_id", &R::sim_rank_id, {"-1"}, "there are no dry runs"},
      {"--rank_table_file",
       &R::rank_table_file,
       {},
       "a process's rank is its node id, which msrun gives it"},
      {"--worker_log_name",
       &R::worker_log_name,
       {"worker"},
       "the logs are worker_<rank>.log; --log_dir chooses their folder"},
      {"--tail_worker_log",
       &R::tail_worker_log,
       {},
       "msrun shows no logs; `tail -f` those in --log_dir, or use `holdfast run`"}};
  return all;
}

}  // namespace

void add_reference_options(CLI::App& app, ReferenceOptions& options) {
  app.add_option("--cluster_time_out", options.cluster_time_out,
                 "Seconds for all workers to come (negative: no limit); sets MS_TOPO_TIMEOUT");
  for (const Fixed& one : fixed()) app.add_option(one.name, options.*one.value)->group("");
}

Status apply(const ReferenceOptions& options, std::vector<std::string>& environment) {
  for (const Fixed& one : fixed()) {
    const std::string& value = options.*one.value;
    bool taken = value == ReferenceOptions().*one.value;
    for (const auto word : one.taken) taken = taken || value == word;
    if (!taken) return Error{Blame::kUser, cat(one.name, "=", value, " is refused: ", one.reason)};
  }
  const std::string& limit = options.cluster_time_out;
  if (limit.empty()) return {};
  std::int64_t seconds = 0;
  const auto [end, error] = std::from_chars(limit.data(), limit.data() + limit.size(), seconds);
  if (error != std::errc{} || end != limit.data() + limit.size() || seconds == 0 ||
      seconds > kMostSeconds) {
    return Error{Blame::kUser, cat("--cluster_time_out is '", limit,
                                   "'; allowed is a whole number of seconds from 1 to ",
                                   kMostSeconds, ", or a negative one: no limit")};
  }
  std::erase_if(environment, [](const auto& v) { return v.starts_with("MS_TOPO_TIMEOUT="); });
  environment.push_back("MS_TOPO_TIMEOUT=" + limit);
  return {};
}

}  // namespace holdfast::apps
