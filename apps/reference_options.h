// The options that MindSpore's msrun has besides those of Holdfast. Each does what it says, or is
// refused with a reason.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace holdfast::apps {

struct ReferenceOptions {
  std::string cluster_time_out;  // Sets MS_TOPO_TIMEOUT of the job; empty: leaves it as it is.
  std::string bind_core = "False";
  std::string bind_numa = "False";
  std::string sim_level = "-1";
  std::string sim_rank_id = "-1";
  std::string rank_table_file;
  std::string worker_log_name = "worker";
  std::string tail_worker_log;
};

void add_reference_options(CLI::App& app, ReferenceOptions& options);

// Changes the job's environment as the options say. Error: why an option is refused.
[[nodiscard]] Status apply(const ReferenceOptions& options, std::vector<std::string>& environment);

}  // namespace holdfast::apps
