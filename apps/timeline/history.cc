#include "apps/timeline/history.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"

namespace holdfast::apps::timeline {
namespace {

struct Death {
  std::int64_t t_ns = 0;
  std::string words;
};

// Host and pid: processes of two hosts, or containers, may have the same pid.
using Process = std::pair<std::string, std::int64_t>;

struct Spawned {
  Event event;
  std::string host;
  std::int64_t agent_until = 0;
};

// What the agents and the scheduler say, from all files.
struct Told {
  std::map<Process, Death> deaths;  // From the agents.
  std::vector<Spawned> spawned;
  std::int64_t end_ns = std::numeric_limits<std::int64_t>::max();  // Later deaths are normal ends.
};

void take_agent(const File& file, Told& told) {
  std::map<std::int64_t, std::int64_t> pids;  // By the agent's number of the process.
  for (const auto& event : file.events) {
    if (event.name == "spawn") {
      pids[event.process] = event.child;
      told.spawned.push_back({event, file.host, file.last_ns()});
    } else if (event.name == "died") {
      const auto pid = pids.find(event.process);
      if (pid == pids.end()) continue;
      // The first event about a death has its time; the last one has the cause.
      auto& death = told.deaths[{file.host, pid->second}];
      if (death.t_ns == 0) death.t_ns = event.detected_ns != 0 ? event.detected_ns : event.t_ns;
      death.words = event.exit_code == 0 ? "" : event.text;
    }
  }
}

Told take_all(const std::vector<File>& files) {
  Told told;
  for (const auto& file : files) {
    if (file.writer == Writer::kAgent) take_agent(file, told);
    for (const auto& event : file.events) {
      if (event.name == "end" && file.writer != Writer::kWorker) {
        told.end_ns = std::min(told.end_ns, event.t_ns);
      }
    }
  }
  return told;
}

// Puts bars into the lanes of their names.
class Lanes {
 public:
  void add(const std::string& lane, std::int64_t rank, Bar bar) {
    auto& place = lanes_[{order(lane, rank), rank, lane}];
    place.name = lane;
    place.rank = rank;
    place.bars.push_back(std::move(bar));
  }
  // Adds a waiting spare. It gets the first lane of spares that is free at its start.
  void add_spare(Bar bar) { spares_.push_back(std::move(bar)); }

  std::vector<Lane> take() {
    const auto earlier = [](const Bar& a, const Bar& b) {
      return std::pair(a.from_ns, a.pid) < std::pair(b.from_ns, b.pid);
    };
    std::sort(spares_.begin(), spares_.end(), earlier);
    std::vector<std::int64_t> busy;
    for (auto& bar : spares_) {
      std::size_t at = 0;
      while (at < busy.size() && busy[at] > bar.from_ns) ++at;
      if (at == busy.size()) busy.push_back(0);
      busy[at] = bar.to_ns;
      add(cat("spare ", at + 1), -1, std::move(bar));
    }
    std::vector<Lane> lanes;
    for (auto& [key, lane] : lanes_) {
      std::sort(lane.bars.begin(), lane.bars.end(), earlier);
      lanes.push_back(std::move(lane));
    }
    return lanes;
  }

 private:
  static int order(const std::string& lane, std::int64_t rank) {
    return rank >= 0 ? 1 : lane == "scheduler" ? 0 : lane.starts_with("spare") ? 3 : 2;
  }
  std::map<std::tuple<int, std::int64_t, std::string>, Lane> lanes_;
  std::vector<Bar> spares_;
};

// The rank of the worker that wrote the file, by its first event with a rank.
std::int64_t rank_of(const File& file) {
  for (const auto& event : file.events) {
    if (event.rank >= 0) return event.rank;
  }
  return file.steps.empty() ? -1 : file.steps.front().rank;
}

void close(Bar& bar, const std::string& host, const Told& told) {
  const auto death = told.deaths.find({host, bar.pid});
  if (death == told.deaths.end() || death->second.t_ns < bar.from_ns) return;
  bar.to_ns = death->second.t_ns;
  if (bar.to_ns < told.end_ns) bar.death = death->second.words;
}

void add_worker(const File& file, const Told& told, Lanes& lanes) {
  Bar bar{.pid = file.pid, .from_ns = file.first_ns(), .to_ns = file.last_ns(), .file = &file};
  std::string node;
  std::optional<std::int64_t> promoted;
  bool spare = false;
  for (const auto& event : file.events) {
    if (event.name == "start") spare = event.role == "spare";
    if (event.name == "start" || event.name == "promoted") node = event.node;
    if (event.name == "promoted") promoted = event.t_ns;
  }
  if (spare) {
    Bar waiting = bar;
    waiting.waits = true;
    if (promoted) waiting.to_ns = *promoted;
    if (!promoted) close(waiting, file.host, told);
    lanes.add_spare(std::move(waiting));
    if (!promoted) return;
    bar.from_ns = *promoted;
  }
  close(bar, file.host, told);
  const std::int64_t rank = rank_of(file);
  lanes.add(rank >= 0 ? cat("rank ", rank) : cat("node ", node), rank, std::move(bar));
}

// Adds a process that died before it wrote a trace of its own; its agent's trace has its start.
void add_silent(const Spawned& spawned, const std::map<std::string, std::int64_t>& ranks,
                const Told& told, Lanes& lanes) {
  const Event& spawn = spawned.event;
  Bar bar{.pid = spawn.child, .from_ns = spawn.t_ns, .to_ns = spawned.agent_until};
  close(bar, spawned.host, told);
  const auto rank = ranks.find(spawn.node);
  if (spawn.role == "spare") {
    bar.waits = true;
    lanes.add_spare(std::move(bar));
  } else if (spawn.role == "scheduler") {
    lanes.add("scheduler", -1, std::move(bar));
  } else if (rank != ranks.end()) {
    lanes.add(cat("rank ", rank->second), rank->second, std::move(bar));
  } else {
    lanes.add(cat("node ", spawn.node), -1, std::move(bar));
  }
}

std::vector<Lane> lanes_of(const std::vector<File>& files, const Told& told) {
  Lanes lanes;
  std::set<Process> wrote;
  std::map<std::string, std::int64_t> ranks;  // By node id.
  std::set<Process> rehearse;                 // Rehearsing processes, which get no lane.
  for (const auto& spawned : told.spawned) {
    if (spawned.event.role == "rehearsal") rehearse.emplace(spawned.host, spawned.event.child);
  }
  for (const auto& file : files) {
    wrote.emplace(file.host, file.pid);
    if (rehearse.contains({file.host, file.pid})) continue;
    if (file.writer == Writer::kWorker) {
      add_worker(file, told, lanes);
      for (const auto& event : file.events) {
        if (!event.node.empty() && rank_of(file) >= 0) ranks[event.node] = rank_of(file);
      }
      continue;
    }
    Bar bar{.pid = file.pid, .from_ns = file.first_ns(), .to_ns = file.last_ns()};
    close(bar, file.host, told);
    const bool scheduler = file.writer == Writer::kScheduler;
    lanes.add(scheduler ? "scheduler" : "agent", -1, std::move(bar));
  }
  for (const auto& spawned : told.spawned) {
    const Process process{spawned.host, spawned.event.child};
    if (wrote.contains(process) || rehearse.contains(process)) continue;
    add_silent(spawned, ranks, told, lanes);
  }
  return lanes.take();
}

// The newest step that any rank had committed at time `t_ns`.
std::uint64_t newest_step(const std::vector<File>& files, std::int64_t t_ns) {
  std::uint64_t newest = 0;
  for (const auto& file : files) {
    const auto after = std::upper_bound(file.steps.begin(), file.steps.end(), t_ns,
                                        [](std::int64_t t, const Step& s) { return t < s.t_ns; });
    if (after != file.steps.begin()) newest = std::max<std::uint64_t>(newest, (after - 1)->step);
  }
  return newest;
}

// The time of the last rank's event `reform` in a generation, between two times.
std::int64_t formed(const std::vector<File>& files, std::uint64_t generation, std::int64_t from,
                    std::int64_t to) {
  std::int64_t last = 0;
  for (const auto& file : files) {
    if (file.writer != Writer::kWorker) continue;
    for (const auto& e : file.events) {
      if (e.name == "reform" && e.generation == generation && e.t_ns >= from && e.t_ns <= to) {
        last = std::max(last, e.t_ns);
      }
    }
  }
  return last;
}

// Follows the scheduler's notes as runtime/scheduler/recovery_report.cc does, so that the numbers
// are those of recoveries.jsonl.
class Recoveries {
 public:
  explicit Recoveries(const std::vector<File>& files) : files_(files) {}

  void take(const Event& event) {
    if (event.name == "fault") {
      begin_unless_under_way(event);
      auto& ranks = all_.back().ranks;
      if (std::find(ranks.begin(), ranks.end(), event.rank) == ranks.end()) {
        ranks.push_back(event.rank);
      }
    } else if (event.name == "stop" && event.generation > 1) {
      begin_unless_under_way(event);
      if (end(Phase::kNotice) == 0) end(Phase::kNotice) = event.t_ns;
    } else if (event.name == "how") {
      for (auto& one : all_) {
        if (!one.cause.empty() &&
            event.text.starts_with(one.cause.substr(0, one.cause.find(')')))) {
          one.cause = event.text;
        }
      }
    } else if (open_ && event.name == "plan") {
      end(Phase::kStop) = event.t_ns;
    } else if (open_ && event.name == "resume") {
      end(Phase::kRepair) = event.t_ns;
      const std::uint64_t newest = newest_step(files_, all_.back().detected_ns);
      all_.back().steps_lost = newest > event.version ? newest - event.version : 0;
    } else if (open_ && event.name == "recovered" && end(Phase::kRepair) != 0) {
      end(Phase::kForm) = formed(files_, event.generation, end(Phase::kRepair), event.t_ns);
      if (end(Phase::kForm) == 0) end(Phase::kForm) = end(Phase::kRepair);
      end(Phase::kFirstStep) = event.t_ns;
      open_ = false;
    }
  }
  std::vector<Recovery> finish() { return std::move(all_); }

 private:
  std::int64_t& end(Phase phase) { return all_.back().ends_ns[static_cast<std::size_t>(phase)]; }

  void begin_unless_under_way(const Event& event) {
    if (open_ && end(Phase::kRepair) == 0) return;
    constexpr std::int64_t kBelievable = 60'000'000'000;
    const bool told = event.detected_ns != 0 && event.detected_ns <= event.t_ns &&
                      event.t_ns - event.detected_ns < kBelievable;
    all_.push_back({.number = static_cast<std::int64_t>(all_.size()) + 1,
                    .cause = event.text,
                    .detected_ns = told ? event.detected_ns : event.t_ns});
    open_ = true;
  }

  const std::vector<File>& files_;
  std::vector<Recovery> all_;
  bool open_ = false;
};

std::vector<Recovery> recoveries_of(const std::vector<File>& files) {
  std::vector<Event> notes;
  for (const auto& file : files) {
    if (file.writer != Writer::kScheduler) continue;
    notes.insert(notes.end(), file.events.begin(), file.events.end());
  }
  std::stable_sort(notes.begin(), notes.end(),
                   [](const Event& a, const Event& b) { return a.t_ns < b.t_ns; });
  Recoveries recoveries(files);
  for (const auto& note : notes) recoveries.take(note);
  return recoveries.finish();
}

// The wall clock at time `t_ns`; 0: no file tells. Requires: the files are on one clock.
std::int64_t wall_clock_at(const std::vector<File>& files, std::int64_t t_ns) {
  const auto knows = [](const File& file) { return !file.boot.empty(); };
  const auto found = std::find_if(files.begin(), files.end(), knows);
  return found == files.end() ? 0 : t_ns + found->wall_ahead_ns;
}

}  // namespace

const char* name(Phase phase) {
  constexpr std::array<const char*, kPhases> kNames = {"notice", "stop", "repair", "form",
                                                       "first step"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::int64_t Recovery::end_ns() const {
  return std::max(detected_ns, *std::max_element(ends_ns.begin(), ends_ns.end()));
}

std::string short_death(const std::string& words) {
  const std::size_t at = words.find("SIG");
  if (at != std::string::npos) {
    return words.substr(
        at, std::min<std::size_t>(
                words.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", at) - at, 12));
  }
  constexpr std::string_view kCode = "exited with code ";
  const std::size_t code = words.find(kCode);
  if (code != std::string::npos) return "exit " + words.substr(code + kCode.size(), 3);
  if (words.find("stopped") != std::string::npos) return "stopped";
  return "died";
}

History history_of(const std::vector<File>& files) {
  History history;
  const Told told = take_all(files);
  history.from_ns = std::numeric_limits<std::int64_t>::max();
  for (const auto& file : files) {
    history.from_ns = std::min(history.from_ns, file.first_ns());
    history.to_ns = std::max(history.to_ns, file.last_ns());
    for (const auto& event : file.events) {
      const bool names_job = event.name == "start" && file.writer != Writer::kWorker;
      if (names_job && history.job.empty()) history.job = event.text;
    }
    for (const auto& step : file.steps)
      history.steps = std::max<std::uint64_t>(history.steps, step.step);
  }
  history.lanes = lanes_of(files, told);
  history.ranks = static_cast<std::size_t>(std::count_if(
      history.lanes.begin(), history.lanes.end(), [](const Lane& lane) { return lane.rank >= 0; }));
  history.recoveries = recoveries_of(files);
  history.wall_ns = wall_clock_at(files, history.from_ns);
  return history;
}

}  // namespace holdfast::apps::timeline
