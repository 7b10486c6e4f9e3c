#include "apps/web/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "wording/job_states.h"

namespace holdfast::apps::web {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Families {
 public:
  // Begins a family, to which add() adds until the next one.
  Families& begin(const char* name, const char* help, MetricType type = MetricType::Gauge) {
    all_.push_back({name, help, type, {}});
    return *this;
  }

  // Leaves out what is no number.
  Families& add(double value, Labels labels = {}) {
    if (std::isnan(value)) return *this;
    ClientMetric metric;
    metric.label = std::move(labels);
    (all_.back().type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    all_.back().metric.push_back(std::move(metric));
    return *this;
  }

  Families& add(const Times& times, Labels labels) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.summary.sample_count = times.count;
    metric.summary.sample_sum = times.seconds;
    all_.back().metric.push_back(std::move(metric));
    return *this;
  }

  [[nodiscard]] std::string text() const { return prometheus::TextSerializer().Serialize(all_); }

 private:
  std::vector<MetricFamily> all_;
};

double number(const Json& json, const char* key) {
  return number_of(json, key).value_or(kNone);
}

// Adds how many entries of a list have which text under `key`. The `known` texts are there with 0,
// too.
void count(Families& families, const Json& list, const char* key,
           std::initializer_list<const char*> known) {
  std::map<std::string, double> counts;
  for (const char* text : known) counts[text] = 0;
  for (const auto& one : list) counts[text_of(one, key, "unknown")] += 1;
  for (const auto& [text, times] : counts) families.add(times, {{key, text}});
}

void add_job(Families& families, const Json& status) {
  families.begin("holdfast_job_info", "The job's name, and whether its connections are under TLS.")
      .add(1, {{"job", text_of(status, "job")}, {"tls", text_of(status, "tls", "false")}});
  families.begin("holdfast_state", "1 for what the whole job does now, else 0.");
  for (const char* state : wording::kJobStates) {
    families.add(text_of(status, "state") == state ? 1 : 0, {{"state", state}});
  }
  families.begin("holdfast_step", "The step that all ranks are known to have made.")
      .add(number(status, "version"));
  families.begin("holdfast_generation", "Counts the formations of the job.")
      .add(number(status, "generation"));
  families.begin("holdfast_world_size", "Workers of the job.").add(number(status, "world_size"));
  families.begin("holdfast_servers", "Parameter servers of the job.")
      .add(number(status, "servers"));
  families.begin("holdfast_ranks", "Ranks in each state.");
  count(families, list_of(status, "ranks"), "state", {"training"});
  families.begin("holdfast_spares", "Spares in each state.");
  count(families, list_of(status, "spares"), "state", {"ready", "starting"});
  families.begin("holdfast_rehearsals", "Ranks by the verdict of their last rehearsal.");
  count(families, list_of(status, "rehearsals"), "verdict",
        {"equal", "differs", "wrong", "uncertain", "skipped"});
  families.begin("holdfast_remarks", "Remarks that users were told, of the first 200.");
  count(families, list_of(status, "remarks"), "kind", {"slow", "replicas", "damaged"});
  families.begin("holdfast_ranks_that_hold_up", "Ranks that are named because the others wait.")
      .add(static_cast<double>(list_of(status, "holds_up").size()));
}

void add_ranks(Families& families, const Json& status) {
  struct OfRank {
    const char* name;
    const char* help;
    const char* key;
    double unit;
  };
  constexpr std::array<OfRank, 5> kOfRanks{{
      {"holdfast_rank_step", "The newest step that the rank told of.", "version", 1},
      {"holdfast_rank_step_age_seconds", "Since it told of it.", "step_age_s", 1},
      {"holdfast_rank_own_step_seconds", "Its own part of a step, without what it waits.",
       "own_step_ms", 1e-3},
      {"holdfast_rank_between_seconds", "What of that lies between two steps (data, evaluation).",
       "between_ms", 1e-3},
      {"holdfast_loss", "Its loss at its newest step. None: it has none, or it is not finite.",
       "loss", 1},
  }};
  for (const auto& [name, help, key, unit] : kOfRanks) {
    families.begin(name, help);
    // A program that gives no loss gives 0.
    const auto& ranks = list_of(status, "ranks");
    if (key == std::string_view("loss") && std::none_of(ranks.begin(), ranks.end(), [](auto& rank) {
          return number(rank, "loss") != 0;
        })) {
      continue;
    }
    for (const auto& rank : list_of(status, "ranks")) {
      const auto label = text_of(rank, "rank");
      if (label.empty()) continue;  // The job assembles.
      families.add(number(rank, key) * unit, {{"rank", label}, {"host", text_of(rank, "host")}});
    }
  }
}

void add_snapshots(Families& families, const Record& record, Seconds now) {
  const Json& snapshots = list_of(record.status(), "snapshots");
  families.begin("holdfast_snapshots", "Snapshots from which the job could begin again.")
      .add(static_cast<double>(snapshots.size()));
  if (snapshots.empty()) return;
  const double version = number(snapshots[0], "version");
  families.begin("holdfast_snapshot_step", "The step of the newest snapshot.").add(version);
  if (!(version >= 0)) return;
  families
      .begin("holdfast_snapshot_age_seconds",
             "Since the newest snapshot was first seen; more, if it is older than this exporter.")
      .add(now - record.first_seen(version));
}

void add_recoveries(Families& families, const Record& record) {
  families
      .begin("holdfast_recoveries_total", "Recoveries since the job began.", MetricType::Counter)
      .add(number(record.status(), "recoveries"));
  families.begin("holdfast_recoveries_by_cause_total", "Recoveries since this exporter began.",
                 MetricType::Counter);
  for (const auto& [cause, times] : record.causes()) {
    families.add(static_cast<double>(times), {{"cause", std::string(cause)}});
  }
  families.begin("holdfast_recovery_phase_seconds",
                 "What each phase took, of the recoveries since this exporter began.",
                 MetricType::Summary);
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    families.add(record.phases().at(i), {{"phase", kPhases.at(i).name}});
  }
  families
      .begin("holdfast_steps_lost_total",
             "Committed steps that had to be made again, since this exporter began.",
             MetricType::Counter)
      .add(static_cast<double>(record.steps_lost()));
}

}  // namespace

std::string metrics_of(const Record& record, Seconds now) {
  Families families;
  const bool is_up = record.why_not().empty();
  families.begin("holdfast_up", "Whether the job's scheduler answers.").add(is_up ? 1 : 0);
  if (record.status().is_object()) {
    families.begin("holdfast_status_age_seconds", "Since the scheduler answered last.")
        .add(now - record.answered());
    add_recoveries(families, record);
  }
  if (is_up) {
    families.begin("holdfast_query_seconds", "What the scheduler took to answer.")
        .add(record.took());
    add_job(families, record.status());
    add_ranks(families, record.status());
    add_snapshots(families, record, now);
  }
  return families.text();
}

}  // namespace holdfast::apps::web
