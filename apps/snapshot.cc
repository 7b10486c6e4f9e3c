#include "apps/snapshot.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/ask.h"
#include "apps/commands.h"
#include "apps/json.h"
#include "apps/shown.h"
#include "base/number.h"
#include "base/text.h"
#include "base/utc.h"
#include "snapshot/folder.h"
#include "wording/snapshots.h"

namespace holdfast::apps {
namespace {

constexpr const char* kSnapshotCommand = "holdfast snapshot";

int refuse_snapshot(const std::string& why) {
  return complain(shown(why), 1, kSnapshotCommand);
}

std::uint64_t bytes_of(const snapshot::Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const snapshot::File& file : manifest.files) bytes += file.bytes;
  return bytes;
}

// What is in DIR, and what is wrong with it.
struct Survey {
  std::string dir;
  snapshot::Listing listing;
  std::vector<std::string> problems;  // A sentence each.
  std::vector<std::string> damaged;   // Names of whole ones that are not right.

  void verify() {
    for (const snapshot::Found& found : listing.whole) {
      const Status right = snapshot::verify(dir, found.name);
      if (right) continue;
      problems.push_back(right.error().what);
      damaged.push_back(found.name);
    }
  }
  [[nodiscard]] bool is_damaged(const std::string& name) const {
    return std::find(damaged.begin(), damaged.end(), name) != damaged.end();
  }
};

Json json_of(const Survey& survey) {
  Json whole = Json::array();
  for (const auto& [name, manifest] : survey.listing.whole) {
    whole.push_back({{"name", name},
                     {"job", manifest.job},
                     {"run_id", hex(manifest.run_id)},
                     {"version", manifest.version},
                     {"world_size", manifest.world_size},
                     {"servers", manifest.servers},
                     {"program", manifest.program},
                     {"release", manifest.release},
                     {"unix_ms", manifest.unix_ms},
                     {"bytes", bytes_of(manifest)},
                     {"damaged", survey.is_damaged(name)}});
  }
  return {{"folder", survey.dir},
          {"snapshots", whole},
          {"unfinished", survey.listing.half},
          {"problems", survey.problems}};
}

void print(const Survey& survey) {
  using Row = std::array<std::string, 8>;
  std::vector<Row> rows{
      {"time (UTC)", "step", "ranks", "bytes", "release", "job", "snapshot", "program"}};
  for (const auto& [name, manifest] : survey.listing.whole) {
    rows.push_back({utc(manifest.unix_ms / 1000), cat(manifest.version), cat(manifest.world_size),
                    cat(bytes_of(manifest)), shown(manifest.release), shown(manifest.job),
                    name + (survey.is_damaged(name) ? "  (damaged)" : ""),
                    shown(wording::command_line(manifest.program))});
  }
  if (rows.size() == 1) std::printf("%s: no snapshot\n", shown(survey.dir).c_str());
  for (const auto& [time, step, ranks, bytes, release, job, name, program] : rows) {
    if (rows.size() == 1) break;
    std::printf("%-19s  %12s  %5s  %15s  %-7s  %-16s  %-24s  %s\n", time.c_str(), step.c_str(),
                ranks.c_str(), bytes.c_str(), release.c_str(), job.c_str(), name.c_str(),
                program.c_str());
  }
  for (const std::string& half : survey.listing.half) {
    std::printf("%s/%s was not finished, or is being written: it is no snapshot\n",
                shown(survey.dir).c_str(), half.c_str());
  }
}

int list_snapshots(const std::string& dir, bool verifies, bool json) {
  auto listing = snapshot::find(dir);
  if (!listing) return refuse_snapshot(listing.error().what);
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) {
    return refuse_snapshot(cat("there is no folder ", dir));
  }
  Survey survey{.dir = dir, .listing = *std::move(listing), .problems = {}, .damaged = {}};
  survey.problems = survey.listing.unusable;
  if (verifies) survey.verify();
  if (json) {
    std::puts(json_of(survey).dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    print(survey);
  }
  int code = 0;
  for (const std::string& problem : survey.problems) code = refuse_snapshot(problem);
  if (verifies && code == 0 && !json && !survey.listing.whole.empty()) {
    std::puts("All bytes were read, and their digests are right.");
  }
  return code;
}

int verify_one(const std::string& dir, const std::string& name) {
  const Status right = snapshot::verify(dir, name);
  if (!right) return refuse_snapshot(right.error().what);
  const auto manifest = snapshot::read_manifest(dir, name);
  if (!manifest) return refuse_snapshot(manifest.error().what);
  std::printf("%s/%s is right: step %" PRIu64 " of %s, %" PRIu64 " bytes\n", shown(dir).c_str(),
              name.c_str(), manifest->version, counted(manifest->world_size, "rank").c_str(),
              bytes_of(*manifest));
  return 0;
}

// All in a folder, or the one that the path names.
int verify_snapshots(const std::string& path) {
  namespace fs = std::filesystem;
  fs::path given = path;
  while (given.has_parent_path() && given.filename().empty()) given = given.parent_path();
  const std::string above = given.parent_path().empty() ? "." : given.parent_path().string();
  const std::string name = given.filename();
  std::error_code error;
  const bool is_there = fs::is_directory(fs::path(path), error);
  if (snapshot::is_name(name) && (!is_there || fs::exists(given / "manifest.json", error))) {
    return verify_one(above, name);
  }
  auto listing = snapshot::find(path);
  if (!listing) return refuse_snapshot(listing.error().what);
  if (listing->whole.empty() && listing->unusable.empty()) {
    return refuse_snapshot(cat("there is no snapshot in ", path));
  }
  int code = 0;
  for (const std::string& problem : listing->unusable) code = refuse_snapshot(problem);
  for (const snapshot::Found& found : listing->whole) {
    code = std::max(code, verify_one(path, found.name));
  }
  return code;
}

}  // namespace

int snapshots(int argc, const char* const* argv) {
  CLI::App app("Looks into a folder of snapshots: what all ranks of a job held after a step.",
               kSnapshotCommand);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done; 1 something is damaged or not there (said what); 2 wrong command line.\n"
      "A job may write there meanwhile. What it has not finished is no snapshot, and not an "
      "error.\n"
      "The Python package's command has also `diff A B`, which compares two, and `export DIR --to "
      "OUT`, for PyTorch, DCP, safetensors and MindSpore (python -m holdfast snapshot export "
      "--help).");
  std::string path;
  bool json = false, verifies = false;
  std::string job;
  int timeout_s = 600;
  auto* ls = app.add_subcommand("ls", "The snapshots, the newest first: time, step, ranks, bytes");
  ls->add_option("DIR", path, "The folder that a job has its snapshots in")->required();
  ls->add_flag("--json", json, "As JSON");
  ls->add_flag("--verify", verifies, "Read all bytes, and compare their digests");
  auto* check =
      app.add_subcommand("verify", "Read all bytes of snapshots, and compare their digests");
  check->add_option("DIR[/NAME]", path, "All in this folder, or the one of this name")->required();
  auto* now = app.add_subcommand("now", "Have a running job make one, and wait until it is there");
  now->add_option("--job", job, "Its name; needed where several run");
  now->add_option("--timeout", timeout_s, "Seconds to wait for it")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  try {
    std::vector<const char*> words{kSnapshotCommand};
    words.insert(words.end(), argv, argv + argc);
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    const bool is_known = ls->parsed() || check->parsed() || now->parsed();
    return complain(is_known ? error.what()
                             : "say what to do: ls DIR, verify DIR or now; diff and export come "
                               "with the Python package (--help)",
                    2, kSnapshotCommand);
  }
  if (now->parsed()) return snapshot_now(job, timeout_s);
  return ls->parsed() ? list_snapshots(path, verifies, json) : verify_snapshots(path);
}

}  // namespace holdfast::apps
