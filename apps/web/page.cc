#include "apps/web/page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "apps/web/charts.h"
#include "apps/web/ranks.h"
#include "apps/web/text.h"
#include "base/text.h"
#include "wording/job_states.h"

namespace holdfast::apps::web {
namespace {

struct Verdict {
  const char* mood;  // A class of page.css: good, busy, bad or over.
  const char* word;
};

Verdict verdict_of(const Record& record) {
  const std::string state = text_of(record.status(), "state");
  if (state == wording::kEnded) return {"over", "Ended"};
  if (!record.why_not().empty()) return {"bad", "No scheduler"};
  if (state == wording::kRunning) return {"good", "Training"};
  if (state == wording::kStandingStill) return {"bad", "Standing still"};
  if (state == wording::kPausing || state == wording::kPaused) return {"over", "Paused"};
  return {"busy", state == wording::kAssembling ? "Waiting" : "Recovering"};
}

std::string fixed(double number, const char* format) {
  if (std::isnan(number)) return "-";
  char text[64];
  std::snprintf(text, sizeof text, format, number);
  return text;
}

// When a recovery or a remark was, as people read it.
std::string time_of(const Json& json) {
  std::string at = text_of(json, "at", "-");
  if (at.size() < 20 || at[10] != 'T') return at;
  at.resize(19);
  at[10] = ' ';
  return at;
}

std::string head_of(const Record& record, Seconds now) {
  const Json& status = record.status();
  const auto [mood, word] = verdict_of(record);
  std::string said;
  const auto say = [&](const std::string& sentence) {
    if (!sentence.empty()) said += cat("<p>", escaped(sentence), "</p>\n");
  };
  if (!record.why_not().empty()) {
    say(record.why_not());
    if (status.is_object()) {
      say(cat("What follows is from ", duration(now - record.answered()), " ago."));
    }
  }
  say(text_of(status, "reason"));
  if (mood == std::string_view("busy")) {
    say(cat("All ranks: ", text_of(status, "state"), "."));
    if (const auto cause = text_of(status, "cause"); !cause.empty()) say(cat("Because: ", cause));
  } else if (const Json& reports = list_of(status, "recovery_reports"); !reports.empty()) {
    say(cat("The last recovery was at ", time_of(reports.back()), " UTC."));
  }
  const std::string job = text_of(status, "job");
  return cat("<header class=\"", mood, "\">\n<strong>", word, "</strong>\n<div>\n<h1>",
             escaped(job.empty() ? "A job of Holdfast" : job),
             text_of(status, "tls") == "true" ? " <small>under TLS</small>" : "", "</h1>\n", said,
             "</div>\n</header>\n");
}

std::string tile(const char* what, const std::string& value, const std::string& note = {}) {
  return cat("<div><dt>", what, "</dt><dd>", escaped(value.empty() ? "-" : value),
             "</dd><dd class=\"note\">", escaped(note), "</dd></div>\n");
}

std::string snapshot_tile(const Record& record, Seconds now) {
  const Json& snapshots = list_of(record.status(), "snapshots");
  if (snapshots.empty()) return tile("Newest snapshot", "none");
  const double version = number_of(snapshots[0], "version").value_or(kNone);
  const double seen = record.first_seen(version);
  return tile("Newest snapshot", grouped(version),
              std::isnan(seen) ? "" : cat("seen ", duration(now - seen), " ago"));
}

std::string tiles_of(const Record& record, Seconds now) {
  const Json& status = record.status();
  const auto number = [&](const char* key) { return number_of(status, key).value_or(0); };
  const auto has = [](const char* key, const char* value) {
    return [=](const Json& one) { return text_of(one, key) == value; };
  };
  const Json& ranks = list_of(status, "ranks");
  const Json& spares = list_of(status, "spares");
  const auto training = std::count_if(ranks.begin(), ranks.end(), has("state", "training"));
  const auto ready = std::count_if(spares.begin(), spares.end(), has("state", "ready"));
  const double people = number("world_size") + number("servers");
  const double loss = record.points().empty() ? kNone : record.points().back().loss;
  std::string lost;
  double steps_lost = 0;
  for (const auto& report : list_of(status, "recovery_reports")) {
    steps_lost += number_of(report, "steps_lost").value_or(0);
  }
  if (number("recoveries") > 0) lost = cat("steps lost: ", grouped(steps_lost));
  return cat(
      "<dl class=\"tiles\">\n", tile("Step", grouped(number("version"))),
      tile("Steps per second", fixed(record.speed(), "%.3g")),
      std::isnan(loss) ? "" : tile("Loss", fixed(loss, "%.5g"), "mean of the ranks"),
      tile("Ranks that train", grouped(static_cast<double>(training)), cat("of ", grouped(people))),
      tile("Spares ready", grouped(static_cast<double>(ready)),
           cat("of ", grouped(static_cast<double>(spares.size())))),
      tile("Recoveries", grouped(number("recoveries")), lost), snapshot_tile(record, now),
      "</dl>\n");
}

// What a person may have to look at. Empty: nothing.
std::string troubles_of(const Json& status) {
  std::string items;
  const auto add = [&](const std::string& sentence) {
    items += cat("<li>", escaped(sentence), "</li>\n");
  };
  for (const auto& one : list_of(status, "holds_up")) add(text_of(one, "sentence"));
  for (const auto& one : list_of(status, "without_place")) {
    add(cat("worker '", text_of(one, "node_id"), "' (process ", text_of(one, "pid"), " on ",
            text_of(one, "host"), ") ", text_of(one, "state"), ": ", text_of(one, "why")));
  }
  return items.empty() ? "" : cat("<ul class=\"troubles\">\n", items, "</ul>\n");
}

std::string figure(const char* title, const std::string& chart) {
  return chart.empty()
             ? ""
             : cat("<figure><figcaption>", title, "</figcaption>\n", chart, "</figure>\n");
}

std::string charts_of(const Record& record) {
  const auto charts =
      figure("Loss by step", loss_chart(record)) + figure("Steps per second", speed_chart(record));
  return charts.empty() ? "" : cat("<div class=\"charts\">\n", charts, "</div>\n");
}

double length_of(const Json& report) {
  return number_of(report, "first_step_ms").value_or(number_of(report, "over_ms").value_or(0)) /
         1000;
}

std::string who_took_over(const Json& report) {
  std::string text;
  std::size_t named = 0;
  const Json& successors = list_of(report, "successors");
  for (const auto& one : successors) {
    if (++named > 4) return cat(text, " and ", successors.size() - 4, " more");
    text += cat(text.empty() ? "" : ", ", "rank ", text_of(one, "rank"), ": ", text_of(one, "pid"),
                " on ", text_of(one, "host"));
  }
  return text;
}

std::string recoveries_of(const Json& status) {
  const Json& reports = list_of(status, "recovery_reports");
  if (reports.empty()) return {};
  double longest = 0;
  for (const auto& report : reports) longest = std::max(longest, length_of(report));
  std::string rows;
  for (auto report = reports.rbegin(); report != reports.rend(); ++report) {
    const bool went_on = number_of(*report, "resume_ms").has_value();
    rows +=
        cat("<tr><td class=\"number\">", escaped(text_of(*report, "recovery")), "</td><td>",
            escaped(time_of(*report)), "</td><td class=\"wide\">",
            escaped(text_of(*report, "cause")), "</td><td>", recovery_bar(*report, longest),
            "</td><td class=\"number\">", went_on ? duration(length_of(*report)) : "not completed",
            "</td><td class=\"number\">", escaped(text_of(*report, "version")),
            "</td><td class=\"number\">", escaped(text_of(*report, "steps_lost", "-")), "</td><td>",
            escaped(who_took_over(*report)), "</td></tr>\n");
  }
  const auto all = number_of(status, "recoveries").value_or(0);
  const auto shown = static_cast<double>(reports.size());
  return cat(
      "<section><h2>Recoveries <small>",
      all > shown ? cat("the last ", grouped(shown), " of ", grouped(all)) : "",
      "</small></h2>\n<p class=\"legend\"><i class=\"phase0\"></i>notice"
      "<i class=\"phase1\"></i>stop<i class=\"phase2\"></i>repair"
      "<i class=\"phase3\"></i>first step of all</p>\n<div class=\"scroll\"><table>\n"
      "<thead><tr><th>#</th><th>at (UTC)</th><th>what failed</th><th>phases</th><th>took</th>"
      "<th>from step</th><th>steps lost</th><th>took over</th></tr></thead>\n<tbody>\n",
      rows, "</tbody></table></div></section>\n");
}

// A list of what was found in one key, each a table row of some keys.
std::string table_of(const char* title, const Json& list,
                     std::vector<std::pair<const char*, const char*>> columns,
                     bool newest_first = false) {
  if (list.empty()) return {};
  std::string head;
  std::vector<std::string> rows;
  for (const auto& [key, name] : columns) head += cat("<th>", name, "</th>");
  for (const auto& one : list) {
    std::string row;
    for (const auto& [key, name] : columns) {
      const auto cell = key == std::string_view("at") ? time_of(one) : text_of(one, key, "-");
      row += cat(cell.size() > 30 ? "<td class=\"wide\">" : "<td>", escaped(cell), "</td>");
    }
    rows.push_back(cat("<tr>", row, "</tr>\n"));
  }
  if (newest_first) std::reverse(rows.begin(), rows.end());
  const std::size_t shown = std::min(rows.size(), kRanksShown);
  std::string body;
  for (std::size_t i = 0; i < shown; ++i) body += rows[i];
  return cat("<section><h2>", title, " <small>", shown < rows.size() ? cat(shown, " of ") : "",
             rows.size(), "</small></h2>\n<div class=\"scroll\"><table>\n<thead><tr>", head,
             "</tr></thead>\n<tbody>\n", body, "</tbody></table></div></section>\n");
}

std::string document(const std::string& title, const std::string& head, const std::string& body) {
  return cat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>",
      escaped(title), "</title>\n", head, "</head>\n<body>\n", body, "</body>\n</html>\n");
}

}  // namespace

std::string live_part_of(const Record& record, Seconds now, bool all_ranks) {
  const Json& status = record.status();
  std::string body = head_of(record, now);
  if (!status.is_object()) return body;
  body += cat(
      tiles_of(record, now), troubles_of(status), charts_of(record), recoveries_of(status),
      ranks_of(status, all_ranks ? list_of(status, "ranks").size() : kRanksShown),
      table_of("Spares", list_of(status, "spares"),
               {{"host", "host"}, {"state", "state"}, {"node_id", "only for worker"}}),
      table_of("Snapshots", list_of(status, "snapshots"), {{"version", "step"}, {"name", "name"}}),
      table_of("Remarks", list_of(status, "remarks"),
               {{"at", "at (UTC)"}, {"kind", "kind"}, {"rank", "rank"}, {"sentence", "what"}},
               true),
      table_of("Rehearsals", list_of(status, "rehearsals"),
               {{"node_id", "worker"},
                {"version", "step"},
                {"verdict", "verdict"},
                {"sentence", "what"}}));
  return body;
}

std::string page_of(const Record& record, Seconds now, bool all_ranks) {
  const std::string job = text_of(record.status(), "job", "Holdfast");
  const std::string query = all_ranks ? "?ranks=all" : "";
  return document(
      cat(verdict_of(record).word, " - ", job),
      cat("<link rel=\"stylesheet\" href=\"page.css\">\n"
          "<script src=\"page.js\" defer></script>\n"
          "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>\n"),
      cat("<main id=\"live\" data-from=\"live", query, "\" data-every=\"",
          all_ranks && list_of(record.status(), "ranks").size() > kRanksShown * 5 ? 10'000 : 2'000,
          "\">\n", live_part_of(record, now, all_ranks),
          "</main>\n<p id=\"lost\" hidden>"
          "<b>holdfast serve</b> does not answer: what stands here is old.</p>\n"
          "<footer>Holdfast " HOLDFAST_VERSION ": <a href=\"status.json\">status.json</a>, "
          "<a href=\"metrics\">metrics</a></footer>\n"));
}

std::string refusal_page() {
  return document(
      "Holdfast", "",
      "<p>This page needs its token. <code>holdfast serve</code> has printed an address "
      "with it; <code>holdfast serve --print-token</code> prints it again.</p>\n");
}

std::string welcome_page() {
  // Not a redirection: the browser would follow one without the cookie if another site had the
  // link.
  return document("Holdfast", "<meta http-equiv=\"refresh\" content=\"0; url=./\">\n",
                  "<p><a href=\"./\">The status page</a></p>\n");
}

}  // namespace holdfast::apps::web
