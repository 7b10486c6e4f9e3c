// What the page and the metrics say of a job, also of one whose texts are hostile.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "apps/testing/job.h"
#include "apps/web/metrics.h"
#include "apps/web/page.h"
#include "apps/web/record.h"
#include "apps/web/testing.h"
#include "apps/web/text.h"
#include "os/files.h"

namespace holdfast::apps::web {
namespace {

Record record_of(const Json& status) {
  Record record;
  record.take(status, 1000, 0.01);
  return record;
}

TEST(Texts, AreEscaped) {
  EXPECT_EQ(escaped("<a href=\"x\" b='y'>&\n\x7f 中"),
            "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;   中");
}

TEST(Texts, OfNumbers) {
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-1234), "-1,234");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(kNone), "");
  EXPECT_EQ(duration(0.0139), "13.9 ms");
  EXPECT_EQ(duration(4.2), "4.2 s");
  EXPECT_EQ(duration(119), "119 s");
  EXPECT_EQ(duration(720), "12 min");
  EXPECT_EQ(duration(11'100), "3 h 5 min");
  EXPECT_EQ(duration(187'200), "2 d 4 h");
  EXPECT_EQ(duration(1e300), "11574074 d 1 h");
  EXPECT_EQ(duration(kNone), "-");
}

TEST(Records, ReachBackToTheFirstAnswerInBoundedMemory) {
  Record record;
  for (int i = 0; i < 100'000; ++i) {
    record.take({{"version", i * 2}, {"ranks", Json::array()}}, 1000 + i, 0.01);
    ASSERT_LE(record.points().size(), Record::kMostPoints);
  }
  EXPECT_GE(record.points().size(), Record::kMostPoints / 3);
  EXPECT_EQ(record.points().front().step, 0);
  EXPECT_NEAR(record.points().back().step, 200'000, 2000);
  EXPECT_NEAR(record.speed(), 2, 1e-9);
  EXPECT_NEAR(record.points().back().steps_per_s, 2, 1e-9);
}

TEST(Records, TakeTheMeanLossOfRanksThatHaveOne) {
  Json status = status_for_test(100);
  status["ranks"][1]["loss"] = nullptr;      // NaN.
  status["ranks"][2] = rank_for_test(2, 0);  // It has made no step yet.
  status["ranks"].push_back(rank_for_test(4, 100));
  status["ranks"][4]["role"] = "server";
  EXPECT_NEAR(record_of(status).points().back().loss, (0.5 + 3.5) / 2, 1e-12);
}

TEST(Records, CountEachRecoveryOnceAndThoseBeforeNever) {
  Record record = record_of(status_for_test(100));
  EXPECT_EQ(record.causes().at("killed"), 0U);
  Json status = status_for_test(110);
  status["recovery_reports"] = {report_for_test(1), report_for_test(2),
                                report_for_test(3, "<new>")};
  record.take(status, 1001, 0.01);
  status["recovery_reports"].push_back(report_for_test(4));
  record.take(status, 1002, 0.01);
  status["recovery_reports"] = {report_for_test(4)};
  record.take(status, 1003, 0.01);
  EXPECT_EQ(record.causes().at("killed"), 2U);
  EXPECT_EQ(record.causes().at("other"), 1U);
  EXPECT_EQ(record.steps_lost(), 6U);
  EXPECT_EQ(record.phases()[3].count, 3U);
  EXPECT_NEAR(record.phases()[3].seconds, 0.030, 1e-9);
}

TEST(Records, KnowWhenASnapshotWasFirstSeen) {
  Record record = record_of(status_for_test(100));
  record.take(status_for_test(101), 1005, 0.01);
  EXPECT_EQ(record.first_seen(80), 1000);
  Json status = status_for_test(102);
  status["snapshots"][0]["version"] = 100U;
  record.take(status, 1006, 0.01);
  EXPECT_EQ(record.first_seen(100), 1006);
  EXPECT_TRUE(std::isnan(record.first_seen(80)));
}

// The samples, each as "name" or "name{labels}", and the names of the families.
struct Metrics {
  std::map<std::string, std::string> samples;
  std::set<std::string> families;
};

Metrics parsed(const std::string& text) {
  static const std::regex kSample(
      R"x(([a-z_]+)(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(?:,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? (\S+))x");
  Metrics metrics;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch parts;
    if (line.starts_with("# TYPE ")) {
      const auto name = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(metrics.families.insert(name).second) << name << " is there twice";
    } else if (!line.starts_with("# HELP ")) {
      EXPECT_TRUE(std::regex_match(line, parts, kSample)) << line;
      const std::string key = line.substr(0, line.rfind(' '));
      EXPECT_TRUE(metrics.samples.emplace(key, parts[3]).second) << key << " is there twice";
    }
  }
  return metrics;
}

TEST(MetricsOf, AJobThatTrains) {
  Record record = record_of(status_for_test(100));
  Json status = status_for_test(110);
  status["recovery_reports"].push_back(report_for_test(2));
  record.take(status, 1010, 0.02);
  const auto samples = parsed(metrics_of(record, 1012)).samples;
  const auto value = [&](const std::string& name) {
    const auto found = samples.find(name);
    return found == samples.end() ? "none" : found->second;
  };
  EXPECT_EQ(value("holdfast_up"), "1");
  EXPECT_EQ(value("holdfast_status_age_seconds"), "2");
  EXPECT_EQ(value("holdfast_step"), "110");
  EXPECT_EQ(value("holdfast_world_size"), "4");
  EXPECT_EQ(value("holdfast_state{state=\"running\"}"), "1");
  EXPECT_EQ(value("holdfast_state{state=\"recovering\"}"), "0");
  EXPECT_EQ(value("holdfast_job_info{job=\"digits\",tls=\"false\"}"), "1");
  EXPECT_EQ(value("holdfast_rank_own_step_seconds{rank=\"3\",host=\"host1\"}"), "0.0305");
  EXPECT_EQ(value("holdfast_loss{rank=\"2\",host=\"host1\"}"), "2.5");
  EXPECT_EQ(value("holdfast_spares{state=\"ready\"}"), "1");
  EXPECT_EQ(value("holdfast_spares{state=\"starting\"}"), "0");
  EXPECT_EQ(value("holdfast_recoveries_total"), "1");
  EXPECT_EQ(value("holdfast_recoveries_by_cause_total{cause=\"killed\"}"), "1");
  EXPECT_EQ(value("holdfast_recoveries_by_cause_total{cause=\"hung\"}"), "0");
  EXPECT_EQ(value("holdfast_recovery_phase_seconds_sum{phase=\"first_step\"}"), "0.01");
  EXPECT_EQ(value("holdfast_recovery_phase_seconds_count{phase=\"first_step\"}"), "1");
  EXPECT_EQ(value("holdfast_steps_lost_total"), "2");
  EXPECT_EQ(value("holdfast_snapshot_step"), "80");
  EXPECT_EQ(value("holdfast_snapshot_age_seconds"), "12");
}

TEST(MetricsOf, AJobWithoutASchedulerAreNoOldValues) {
  Record never;
  EXPECT_EQ(parsed(metrics_of(never, 1000)).samples.size(), 1U);
  Record record = record_of(status_for_test(100));
  record.miss("it does not run at the moment");
  const auto metrics = parsed(metrics_of(record, 1060));
  EXPECT_EQ(metrics.samples.at("holdfast_up"), "0");
  EXPECT_EQ(metrics.samples.at("holdfast_status_age_seconds"), "60");
  EXPECT_EQ(metrics.samples.at("holdfast_recoveries_total"), "1");
  EXPECT_FALSE(metrics.families.contains("holdfast_step"));
  EXPECT_FALSE(metrics.families.contains("holdfast_loss"));
}

TEST(MetricsOf, TextsInLabelsAreEscaped) {
  Json status = status_for_test(100, 1);
  status["ranks"][0]["host"] = "a\"b\\c\nd 7";
  const auto samples = parsed(metrics_of(record_of(status), 1000)).samples;
  EXPECT_TRUE(samples.contains(R"(holdfast_rank_step{rank="0",host="a\"b\\c\nd 7"})"));
}

// Each metric of the dashboard is one that the exporter gives, and so is each of the documentation.
TEST(MetricsOf, WhatIsWrittenAboutThemAreThere) {
  Record record = record_of(status_for_test(100));
  record.take(status_for_test(101), 1001, 0.01);
  const auto families = parsed(metrics_of(record, 1002)).families;
  std::set<std::string> named;
  for (const char* file : {"examples/grafana/holdfast.json", "docs/operating.md"}) {
    const auto text = os::read_file(cat(HOLDFAST_SOURCE_DIR "/", file));
    ASSERT_TRUE(text) << file;
    if (std::string(file).ends_with(".json")) {
      const auto dashboard = Json::parse(*text, nullptr, false);
      ASSERT_TRUE(dashboard.is_object());
      EXPECT_GE(list_of(dashboard, "panels").size(), 8U);
    }
    static const std::regex kName("holdfast_[a-z_]*[a-z]");
    for (auto at = std::sregex_iterator(text->begin(), text->end(), kName);
         at != std::sregex_iterator(); ++at) {
      const std::string name = std::regex_replace(at->str(), std::regex("_(sum|count)$"), "");
      named.insert(name);
      EXPECT_TRUE(families.contains(name)) << name << " in " << file;
    }
  }
  for (const auto& family : families)
    EXPECT_TRUE(named.contains(family)) << family << " is told nowhere";
}

TEST(Page, TellsAllOfAJobWithoutAScript) {
  Record record = record_of(status_for_test(100));
  record.take(status_for_test(800), 1005, 0.01);
  record.take(status_for_test(1500), 1010, 0.01);
  const auto page = page_of(record, 1011, false);
  EXPECT_TRUE(has(page, "<strong>Training</strong>"));
  EXPECT_TRUE(has(page, "<h1>digits</h1>"));
  EXPECT_TRUE(has(page, "<dd>1,500</dd>"));
  EXPECT_TRUE(has(page, "was killed by signal 9 (SIGKILL)"));
  EXPECT_TRUE(has(page, "2026-11-29 13:45:12"));
  EXPECT_TRUE(has(page, "rank 1: 7 on host1"));
  EXPECT_EQ(count(page, "<tr class=\"good\">"), 4U);
  EXPECT_EQ(count(page, "<svg class=\"chart\""), 2U);
  EXPECT_EQ(count(page, "class=\"phase3\""), 2U);  // A bar and the legend.
  EXPECT_TRUE(has(page, "step-80"));
}

TEST(Page, SaysAtItsTopWhetherTheJobIsWell) {
  const auto word = [](const char* state) {
    Json status = status_for_test(100);
    status["state"] = state;
    const auto page = live_part_of(record_of(status), 1000, false);
    const auto at = page.find("<strong>") + 8;
    return page.substr(at, page.find("</strong>") - at);
  };
  EXPECT_EQ(word("running"), "Training");
  EXPECT_EQ(word("standing still"), "Standing still");
  EXPECT_EQ(word("repairing"), "Recovering");
  EXPECT_EQ(word("paused"), "Paused");
  EXPECT_EQ(word("waiting for workers"), "Waiting");
  EXPECT_EQ(word("ended"), "Ended");
  Record record = record_of(status_for_test(100));
  record.miss("the scheduler does not run at the moment");
  const auto page = live_part_of(record, 1090, false);
  EXPECT_TRUE(has(page, "<strong>No scheduler</strong>"));
  EXPECT_TRUE(has(page, "does not run at the moment"));
  EXPECT_TRUE(has(page, "What follows is from 90 s ago."));
}

TEST(Page, HasNoMarkupOfTheProgram) {
  const std::string evil = "\"><script>alert('x')</script><img src=//a.example onerror=b>";
  Json status = status_for_test(100);
  for (const char* key : {"job", "state", "cause", "reason"}) status[key] = evil;
  for (const char* key : {"host", "node_id", "state", "role", "pid"})
    status["ranks"][0][key] = evil;
  for (const char* key : {"cause", "at", "recovery", "version", "steps_lost"}) {
    status["recovery_reports"][0][key] = evil;
  }
  for (const char* key : {"rank", "pid", "host"}) {
    status["recovery_reports"][0]["successors"][0][key] = evil;
  }
  status["spares"][0] = {{"host", evil}, {"state", evil}, {"node_id", evil}};
  status["snapshots"][0] = {{"version", evil}, {"name", evil}};
  status["remarks"] = {{{"at", evil}, {"kind", evil}, {"rank", evil}, {"sentence", evil}}};
  status["rehearsals"] = {
      {{"node_id", evil}, {"version", evil}, {"verdict", evil}, {"sentence", evil}}};
  status["holds_up"] = {{{"rank", evil}, {"sentence", evil}}};
  status["without_place"] = {
      {{"node_id", evil}, {"pid", evil}, {"host", evil}, {"state", evil}, {"why", evil}}};
  Record record = record_of(status);
  record.miss(evil);
  const auto page = page_of(record, 1000, true);
  EXPECT_FALSE(has(page, "<script>"));
  EXPECT_FALSE(has(page, "<img"));
  EXPECT_FALSE(has(page, "alert('x')"));
  EXPECT_GE(count(page, "&lt;script&gt;"), 25U);
}

TEST(Page, OfValuesOfOtherTypesIsMade) {
  const std::vector<Json> odd = {
      nullptr,
      5,
      -1e308,
      "text",
      true,
      Json::array({1, nullptr, "x", Json::array()}),
      {{"version", -5}, {"rank", {1}}, {"at", 7}, {"recovery", "x"}},
      Json::array(
          {{{"version", 1e300}, {"loss", 1e308}, {"resume_ms", -4}, {"steps_lost", -1e300}}})};
  const Json all = status_for_test(100);
  for (const auto& [key, usual] : all.items()) {
    for (const auto& value : odd) {
      Json status = all;
      status[key] = value;
      Record record = record_of(status);
      record.take(status, 1001, 0.01);
      EXPECT_TRUE(has(page_of(record, 1002, false), "</html>")) << key << ' ' << value;
      parsed(metrics_of(record, 1002));
    }
  }
}

TEST(Page, ShowsFirstWhoDoesNotTrainOfManyRanks) {
  Json status = status_for_test(100, 10'000);
  status["ranks"][9'000] = rank_for_test(9'000, 100, "dead, waiting for its successor");
  status["holds_up"] = {{{"rank", 7'000}, {"sentence", "rank 7000 holds up the job"}}};
  const auto record = record_of(status);
  const auto page = live_part_of(record, 1000, false);
  EXPECT_EQ(count(page, "<td class=\"state\">"), kRanksShown);
  const auto first = page.find("<td class=\"number\">7000</td>");
  const auto second = page.find("<td class=\"number\">9000</td>");
  EXPECT_LT(first, second);
  EXPECT_LT(second, page.find("<td class=\"number\">0</td>"));
  EXPECT_TRUE(has(page, "9,998 training"));
  EXPECT_TRUE(has(page, "9,900 more are not shown"));
  EXPECT_LT(page.size(), 100'000U);
  EXPECT_EQ(count(live_part_of(record, 1000, true), "<td class=\"state\">"), 10'000U);
}

}  // namespace
}  // namespace holdfast::apps::web
