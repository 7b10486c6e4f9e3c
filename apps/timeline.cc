#include "apps/timeline.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "apps/ask.h"
#include "apps/json.h"
#include "apps/timeline/draw.h"
#include "apps/timeline/history.h"
#include "apps/timeline/read.h"
#include "apps/timeline/reports.h"
#include "apps/timeline/svg.h"
#include "base/text.h"
#include "os/files.h"
#include "runtime/jobs/job_files.h"

namespace holdfast::apps {
int draw_timeline(int argc, const char* const* argv) {
  const auto refuse = [](const std::string& why, int code) {
    return complain(why, code, "holdfast timeline");
  };
  CLI::App app("Draws what happened to a job, out of the traces that HOLDFAST_TRACE=DIR left.",
               "holdfast timeline");
  app.footer(
      "The picture (SVG; a browser shows it) has a lane for each rank, and the longest 8 "
      "recoveries in ms.\nExit codes: 0 done; 1 no traces, or it can not be written (said why); 2 "
      "wrong command line.");
  std::string folder;
  std::string output = "timeline.svg";
  timeline::Zoom zoom;
  app.add_option("dir", folder, "The folder of the traces")->required();
  app.add_option("--output", output, "Where the picture goes")->capture_default_str();
  app.add_option("--from", zoom.from, "Begin at this second after the job's first event");
  app.add_option("--to", zoom.to, "End at this second after the job's first event");
  try {
    std::vector<const char*> words{"holdfast timeline"};
    words.insert(words.end(), argv, argv + argc);
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    return refuse(folder.empty() ? "say which folder has the traces: holdfast timeline DIR (--help)"
                                 : error.what(),
                  2);
  }
  if (!std::isfinite(zoom.from.value_or(0)) || !std::isfinite(zoom.to.value_or(0))) {
    return refuse("--from and --to are seconds", 2);
  }
  if (zoom.to && *zoom.to <= zoom.from.value_or(0)) {
    return refuse("--to must be greater than --from", 2);
  }
  const auto traces = timeline::read_traces(folder);
  if (!traces) return refuse(traces.error().what, 1);
  for (const auto& complaint : traces->complaints) refuse(complaint, 0);
  const auto history = timeline::history_of(traces->files);
  const auto seconds = static_cast<double>(history.to_ns - history.from_ns) / 1e9;
  if (zoom.from.value_or(0) >= seconds) {
    char text[128];
    std::snprintf(text, sizeof text, "--from is beyond the last event, which came after %.3f s",
                  seconds);
    return refuse(text, 1);
  }
  const auto written = os::write_file_atomically(output, timeline::draw(history, zoom), 0644);
  if (!written) return refuse(written.error().what, 1);
  const std::string whose = history.job.empty() ? "" : " of job " + history.job;
  std::printf("The timeline%s is in %s\n", printable(whose).c_str(), output.c_str());
  return 0;
}

std::string draw_recoveries(const runtime::Ended& ended) {
  const auto read = [&](const char* name) {
    const auto text = os::read_file(cat(ended.log_directory, '/', name));
    return text ? *text : std::string();
  };
  const auto reports = lines_of(read(runtime::kReports));
  if (reports.empty()) return {};
  const auto ns = [](std::chrono::system_clock::time_point at) {
    return std::chrono::nanoseconds(at.time_since_epoch()).count();
  };
  const auto history =
      timeline::history_of_reports(reports, Json::parse(read(runtime::kLastStatus), nullptr, false),
                                   {ns(ended.began), ns(std::chrono::system_clock::now())});
  const std::string path = cat(ended.log_directory, '/', runtime::kPicture);
  const auto written = os::write_file_atomically(path, timeline::draw(history, {}), 0644);
  return written ? cat(path, " draws ", reports.size() == 1 ? "it" : "them") : written.error().what;
}

}  // namespace holdfast::apps
