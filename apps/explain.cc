// `holdfast explain`.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
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

std::string seconds_of(double ms) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f s", ms / 1000);
  return text;
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

std::string as_sentence(std::string text) {
  if (text.empty() || text.back() != '.') text += '.';
  return text;
}

// Each fault of a recovery in its order, with its cause and who saw it. A report of an older
// version has only the first.
std::string what_failed(const Json& recovery) {
  const auto seen = [](const Json& json) {
    const std::string by = text_of(json, "seen_by");
    return by.empty() ? std::string() : cat(" Seen by ", by, ".");
  };
  std::string said;
  for (const Json& fault : list_of(recovery, "faults")) {
    if (!fault.is_object()) continue;
    if (!said.empty()) said += cat(" Then, after ", ms_of(fault, "after_ms"), ": ");
    const bool is_drill = number_of(fault, "drill").has_value();
    said += as_sentence(
        cat(text_of(fault, "cause"),
            is_drill ? "; holdfast inject had ordered such a fault of this process" : ""));
    if (const auto waited = number_of(fault, "waited_ms")) {
      said += cat(" The others had waited for it for ", seconds_of(*waited), '.');
    }
    said += seen(fault);
  }
  return said.empty() ? as_sentence(text_of(recovery, "cause")) + seen(recovery) : said;
}

std::string paragraph_of(const Json& recovery) {
  std::string said = cat("Recovery ", text_of(recovery, "recovery"));
  if (const auto at = text_of(recovery, "at"); !at.empty()) said += cat(", ", at);
  said += cat(": ", what_failed(recovery), ' ', who_took_over(recovery));
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

std::string sentence_of(const Json& remark) {
  const std::string at = text_of(remark, "at");
  const bool is_drill = text_of(remark, "kind") == "drill";
  return cat(at, at.empty() ? "" : ": ",
             as_sentence(
                 cat(text_of(remark, "sentence"), is_drill ? ", ordered by holdfast inject" : "")));
}

// A recovery or a remark.
struct Happening {
  std::string at;  // Its time, as text that sorts; empty: not known.
  bool is_recovery = true;
  bool is_ordered = false;  // A drill, which comes directly before the recovery that it caused.
  const Json* json = nullptr;
};

// All that has happened, in the order of time; what has no time comes last.
std::vector<Happening> happenings(const Story& story) {
  std::vector<Happening> all;
  std::map<std::string, std::string> ordered;  // Times of recoveries, by the drills behind them.
  for (const Json& recovery : story.recoveries) {
    const std::string at = text_of(recovery, "at");
    for (const Json& fault : list_of(recovery, "faults")) {
      const auto drill = fault.is_object() ? text_of(fault, "drill") : "";
      if (!drill.empty()) ordered.emplace(drill, at);
    }
    all.push_back({.at = at, .json = &recovery});
  }
  if (story.status.is_object()) {
    for (const Json& remark : list_of(story.status, "remarks")) {
      if (!remark.is_object()) continue;
      const auto recovery = ordered.find(text_of(remark, "remark"));
      const bool is_ordered = recovery != ordered.end();
      all.push_back(
          {is_ordered ? recovery->second : text_of(remark, "at"), false, is_ordered, &remark});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Happening& a, const Happening& b) {
    return std::tuple(a.at.empty(), a.at, !a.is_ordered) <
           std::tuple(b.at.empty(), b.at, !b.is_ordered);
  });
  return all;
}

// How many recoveries there were, and what they cost.
std::string totals(const Story& story) {
  double without_steps = 0;
  double waited = 0;
  std::int64_t cut_short = 0;
  for (const Json& recovery : story.recoveries) {
    const auto first_step = number_of(recovery, "first_step_ms");
    without_steps += number_of(recovery, "over_ms").value_or(first_step.value_or(0));
    cut_short += first_step ? 0 : 1;
    for (const Json& fault : list_of(recovery, "faults")) {
      if (fault.is_object()) waited += number_of(fault, "waited_ms").value_or(0);
    }
  }
  const auto known = static_cast<std::int64_t>(story.recoveries.size());
  const auto told = story.status.is_object() ? number_of(story.status, "recoveries") : std::nullopt;
  const auto all = std::max(known, static_cast<std::int64_t>(told.value_or(0)));
  if (all == 0) return "There was no recovery that is complete.";
  return cat(
      all, all == 1 ? " recovery" : " recoveries",
      all == known ? "" : cat(", of which ", known, " are told here"),
      "; from a fault to the next step of all ranks ", seconds_of(without_steps), " in all",
      cut_short == 0 ? "" : cat(" (", cut_short, " came to no step: until it was cut short)"),
      waited == 0 ? "" : cat("; before, ", seconds_of(waited), " of waiting for ranks that hung"),
      '.');
}

// On a terminal, lines have at most 100 columns. A program gets each paragraph as one line.
void print_paragraph(const std::string& text) {
  constexpr std::size_t kColumns = 100;
  const std::string shown = printable(text);
  if (::isatty(STDOUT_FILENO) == 0) {
    std::printf("%s\n", shown.c_str());
    return;
  }
  std::size_t column = 0;
  std::istringstream words(shown);
  for (std::string word; std::getline(words, word, ' ');) {
    if (column != 0) std::printf(column + 1 + word.size() > kColumns ? "\n" : " ");
    column = column != 0 && column + 1 + word.size() <= kColumns ? column + 1 : 0;
    std::printf("%s", word.c_str());
    column += word.size();
  }
  std::printf("\n");
}

void print(const Story& story) {
  const std::string job = story.status.is_object() ? text_of(story.status, "job") : "";
  const std::string first = cat(job.empty() ? "" : cat("Job ", job, ": "), story.standing);
  if (!first.empty()) print_paragraph(first);
  print_paragraph(totals(story));
  bool follows_order = false;
  for (const Happening& one : happenings(story)) {
    if (!follows_order) std::printf("\n");
    follows_order = one.is_ordered;
    print_paragraph(one.is_recovery ? paragraph_of(*one.json) : sentence_of(*one.json));
  }
  if (!story.status.is_object()) return;
  for (const Json& one : list_of(story.status, "holds_up")) {
    if (!one.is_object()) continue;
    std::printf("\n");
    print_paragraph(text_of(one, "sentence"));
  }
}

void print_json(const Story& story) {
  for (const Happening& one : happenings(story)) {
    const std::string line = one.json->dump(-1, ' ', false, Json::error_handler_t::replace);
    std::printf("%s\n", line.c_str());
  }
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

int explain(const std::string& job, const std::string& folder, bool json) {
  const auto tell = [&](const Story& story) {
    json ? print_json(story) : print(story);
    return 0;
  };
  if (!folder.empty() && !job.empty()) return complain("say --job NAME or DIR, not both", 2);
  if (!folder.empty()) {
    const Story story = of_folder(folder);
    if (story.status.is_object() || !story.recoveries.empty()) return tell(story);
    return complain(cat(folder, " has no ", runtime::kLastStatus, " and no ", runtime::kReports,
                        ": give the log folder (--log_dir) of a job that has ended. Of one that "
                        "runs, or was killed with its launcher: holdfast explain --job NAME"),
                    1);
  }
  const auto asked = ask_job<wire::StatusReply>(job, wire::StatusQuery{});
  if (const auto& dead = asked.chosen.dead) {
    Story story;
    story.recoveries = lines_of(runtime::read_left(dead->directory, runtime::kReports));
    story.status =
        Json::parse(runtime::read_left(dead->directory, runtime::kLastStatus), nullptr, false);
    story.standing = asked.why;
    return tell(story);
  }
  if (!asked.answer) return complain(asked.why, asked.code);
  return tell(of_living(*asked.chosen.job, asked.answer->json));
}

}  // namespace holdfast::apps
