// `holdfast explain`.
#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "apps/ask.h"
#include "apps/commands.h"
#include "apps/json.h"
#include "base/text.h"
#include "os/files.h"

namespace holdfast::apps {
namespace {

// What is known of a job. Its parts come from files, so each value may be missing or of any type.
struct Story {
  Json status;  // The newest, or the last one. No object: there is none.
  std::vector<Json> recoveries;
  std::string standing;  // Whether it runs, in words.
};

std::string ms_of(const Json& json, const char* key) {
  return number_of(json, key, "%.1f ms");
}

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    auto json = Json::parse(line, nullptr, false);
    if (json.is_object()) all.push_back(std::move(json));
  }
  return all;
}

// "Rank 1 copied 4096 bytes, its lost pages, from rank 0. ", and so on.
std::string how_rebuilt(const Json& recovery) {
  if (!recovery.contains("rebuilt")) return {};
  std::string said;
  std::string finished;
  for (const Json& one : list_of(recovery, "rebuilt")) {
    if (!one.is_object()) continue;
    const std::string rank = text_of(one, "rank");
    const std::string act = text_of(one, "act");
    if (act == "finish") finished += cat(finished.empty() ? "" : ", ", rank);
    if (act == "begin") said += cat("Rank ", rank, " began with version 0. ");
    if (act != "receive") continue;
    const std::string from = text_of(one, "source");
    const std::string holder = text_of(one, "private_source");
    said += cat("Rank ", rank, " copied ", text_of(one, "bytes"), " bytes",
                text_of(one, "of_pages") == "true" ? ", its lost pages," : "",
                from.empty() ? "" : cat(" from rank ", from),
                holder.empty() ? "" : cat(", and its own part from rank ", holder), ". ");
  }
  if (!finished.empty()) {
    said += cat("Ranks that finished the step from what lay in memory: ", finished, ". ");
  }
  if (const auto more = text_of(recovery, "left_out"); !more.empty() && more != "0") {
    said += cat("(", more, " more are left out here.) ");
  }
  return said.empty() ? "Each rank, or its successor, found the state in memory. " : said;
}

std::string who_took_over(const Json& recovery) {
  std::string said;
  for (const Json& one : list_of(recovery, "successors")) {
    if (!one.is_object()) continue;
    said += cat("Process ", text_of(one, "pid"), " on ", text_of(one, "host"),
                " took the place of rank ", text_of(one, "rank"), " after ", ms_of(one, "after_ms"),
                ". ");
  }
  return said;
}

std::string what_it_cost(const Json& recovery) {
  const auto lost = recovery.find("steps_lost");
  const std::string version = text_of(recovery, "version");
  if (lost == recovery.end() || !lost->is_number_unsigned() ||
      ms_of(recovery, "resume_ms").empty()) {
    return "It was not completed.";
  }
  const auto steps = lost->get<std::uint64_t>();
  return cat(
      "Training went on after step ", version, " as generation ", text_of(recovery, "generation"),
      steps == 0 ? ". No step that a rank had told of as committed is lost"
                 : cat(". Nobody had the last ", counted(static_cast<std::int64_t>(steps), "step"),
                       " any more, though committed: they were made again"),
      ".");
}

std::string paragraph_of(const Json& recovery) {
  std::string said = cat("Recovery ", text_of(recovery, "recovery"));
  if (const auto at = text_of(recovery, "at"); !at.empty()) said += cat(", ", at);
  said += cat(": ", text_of(recovery, "cause"), ". ");
  if (const auto seen = text_of(recovery, "seen_by"); !seen.empty()) {
    said += cat("Seen by ", seen, ". ");
  }
  said += who_took_over(recovery);
  if (!ms_of(recovery, "repair_ms").empty()) said += how_rebuilt(recovery);
  std::string phases;
  for (const auto& [key, words] :
       {std::pair("stop_ms", "told to stop"), std::pair("plan_ms", "all had reported"),
        std::pair("repair_ms", "all held the version"), std::pair("resume_ms", "told to go on"),
        std::pair("first_step_ms", "all had made a new step")}) {
    const std::string after = ms_of(recovery, key);
    if (!after.empty()) phases += cat(phases.empty() ? "" : ", ", words, ' ', after);
  }
  if (!phases.empty()) said += cat("After the fault: ", phases, ". ");
  return said + what_it_cost(recovery);
}

// How many recoveries there were, and what they cost.
std::string totals(const Story& story) {
  double without_steps = 0;
  std::size_t cut_short = 0;
  for (const Json& recovery : story.recoveries) {
    const auto found = recovery.find("first_step_ms");
    const bool is_whole = found != recovery.end() && found->is_number();
    without_steps += is_whole ? found->get<double>() : 0;
    cut_short += is_whole ? 0 : 1;
  }
  const auto known = static_cast<std::int64_t>(story.recoveries.size());
  std::int64_t all = known;
  if (story.status.is_object()) {
    const auto told = story.status.find("recoveries");
    if (told != story.status.end() && told->is_number_integer()) {
      all = std::max(all, told->get<std::int64_t>());
    }
  }
  if (all == 0) return "There was no recovery that is complete.";
  char pause[64];
  std::snprintf(pause, sizeof pause, "%.1f s", without_steps / 1000);
  return cat(all, all == 1 ? " recovery" : " recoveries",
             all == known ? "" : cat(", of which ", known, " are told here"),
             "; from a fault to the next step of all ranks ", pause, " in all",
             cut_short == 0 ? "" : cat(", without ", cut_short, " that came to no step"), ".");
}

void print(const Story& story) {
  const std::string job = story.status.is_object() ? text_of(story.status, "job") : "";
  const std::string first = cat(job.empty() ? "" : cat("Job ", job, ": "), story.standing);
  if (!first.empty()) std::printf("%s\n", printable(first).c_str());
  std::printf("%s\n", totals(story).c_str());
  for (const Json& recovery : story.recoveries) {
    std::printf("\n%s\n", printable(paragraph_of(recovery)).c_str());
  }
  const auto tell = [&](const char* key, auto words_of) {
    for (const Json& one : list_of(story.status, key)) {
      const std::string words = words_of(one);
      if (!words.empty()) std::printf("\n%s\n", printable(words).c_str());
    }
  };
  if (!story.status.is_object()) return;
  tell("remarks", [](const Json& one) { return one.is_string() ? one.get<std::string>() : ""; });
  tell("holds_up", [](const Json& one) { return one.is_object() ? text_of(one, "sentence") : ""; });
}

std::string how_it_ended(const Json& status) {
  if (!status.is_object()) return {};
  const std::string reason = text_of(status, "reason");
  return reason.empty() ? std::string() : cat("it has ended: ", reason);
}

Story of_folder(const std::string& folder) {
  Story story;
  const auto status = os::read_file(cat(folder, '/', runtime::kLastStatus));
  if (status) story.status = Json::parse(*status, nullptr, false);
  const auto reports = os::read_file(cat(folder, '/', runtime::kReports));
  if (reports) story.recoveries = lines_of(*reports);
  story.standing = how_it_ended(story.status);
  return story;
}

Story of_living(const runtime::FoundJob& job, const std::string& answer) {
  Story story{.status = Json::parse(answer, nullptr, false), .recoveries = {}, .standing = {}};
  if (!story.status.is_object()) return story;
  // Only the scheduler's host has all of them. Another scheduler of the job may have served here
  // before.
  if (job.scheduler_alive) {
    story.recoveries = lines_of(runtime::read_left(job.directory, runtime::kReports));
  } else {
    for (const Json& one : list_of(story.status, "recovery_reports")) {
      if (one.is_object()) story.recoveries.push_back(one);
    }
  }
  story.standing =
      cat("it is ", text_of(story.status, "state"), ", step ", text_of(story.status, "version"));
  return story;
}

}  // namespace

int explain(const std::string& job, const std::string& folder) {
  if (!folder.empty() && !job.empty()) return complain("say --job NAME or DIR, not both", 2);
  if (!folder.empty()) {
    const Story story = of_folder(folder);
    if (!story.status.is_object() && story.recoveries.empty()) {
      return complain(cat(folder, " has no ", runtime::kLastStatus, " and no ", runtime::kReports,
                          ": give the log folder (--log_dir) of a job that has ended. Of one that "
                          "runs, or was killed with its launcher: holdfast explain --job NAME"),
                      1);
    }
    print(story);
    return 0;
  }
  const auto asked = ask_job<wire::StatusReply>(job, wire::StatusQuery{});
  if (const auto& dead = asked.chosen.dead) {
    Story story;
    story.recoveries = lines_of(runtime::read_left(dead->directory, runtime::kReports));
    story.status =
        Json::parse(runtime::read_left(dead->directory, runtime::kLastStatus), nullptr, false);
    story.standing = asked.why;
    print(story);
    return 0;
  }
  if (!asked.answer) return complain(asked.why, asked.code);
  print(of_living(*asked.chosen.job, asked.answer->json));
  return 0;
}

}  // namespace holdfast::apps
