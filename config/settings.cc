#include "config/settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstring>
#include <random>

#include "base/assert.h"
#include "base/text.h"

namespace holdfast::config {
namespace {

constexpr Row kTable[] = {
#define HF_ROW(field, type, kind, variable, default_text, lowest, highest, help) \
  {#field, Kind::kind, variable, default_text, lowest, highest, help},
    HF_SETTINGS(HF_ROW)
#undef HF_ROW
};

// Names that the build, the tests and the Python faces use, also with "_" and more behind them.
constexpr std::array<std::string_view, 7> kNotOurs = {
    "HOLDFAST_TORCH", "HOLDFAST_PYTHON", "HOLDFAST_MINDSPORE", "HOLDFAST_TEST",
    "HOLDFAST_SEEDS", "HOLDFAST_CI",     "HOLDFAST_BENCH"};

constexpr std::array<std::string_view, 15> kGivenByMsrun = {
    "MS_ROLE",           "MS_SCHED_HOST",        "MS_SCHED_PORT",    "MS_WORKER_NUM",
    "MS_NODE_ID",        "HOLDFAST_INCARNATION", "HOLDFAST_ATTEMPT", "HOLDFAST_RUN",
    "HOLDFAST_LIFELINE", "HOLDFAST_SPARE_FD",    "HOLDFAST_AGENT",   "HOLDFAST_STANDBY",
    "HOLDFAST_PREPARE",  "HOLDFAST_REHEARSE",    "MS_SERVER_NUM"};

bool is_derived(const Row& row) {
  return row.default_text.starts_with('(');
}

Error wrong(const Row& row, std::string_view text) {
  return {Blame::kUser, cat(row.variable, " is '", text, "'; allowed is ", allowed(row))};
}

template <class T>
bool whole(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

// One overload for each type that the table has.
Status parse(const Row& row, std::string_view text, Role& out) {
  if (text.empty()) {
    out = Role::kNone;
  } else if (text == "MS_SCHED") {
    out = Role::kScheduler;
  } else if (text == "MS_WORKER") {
    out = Role::kWorker;
  } else if (text == "MS_PSERVER" || text == "MS_SERVER") {
    out = Role::kServer;
  } else {
    return wrong(row, text);
  }
  return {};
}

Status parse(const Row& row, std::string_view text, std::string& out) {
  if (row.kind == Kind::kName && !is_plain_name(text)) return wrong(row, text);
  if (row.kind == Kind::kProcess && !text.empty() && !process_name(text)) return wrong(row, text);
  out = text;
  return {};
}

Status parse(const Row& /*row*/, std::string_view text, Secret& out) {
  out.given = !text.empty();
  return {};
}

Status parse(const Row& row, std::string_view text, bool& out) {
  if (text != "0" && text != "1") return wrong(row, text);
  out = text == "1";
  return {};
}

Status parse(const Row& row, std::string_view text, Drift& out) {
  if (text != "end" && text != "warn") return wrong(row, text);
  out = text == "end" ? Drift::kEnd : Drift::kWarn;
  return {};
}

// "30s", "5min", "1.5h"; a bare number is one of steps.
Status parse(const Row& row, std::string_view text, Every& out) {
  out = {};
  if (whole(text, out.steps)) return out.steps > 0 ? Status{} : wrong(row, text);
  out.steps = 0;  // What the beginning of a time may have set.
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ms", 0.001}, {"min", 60}, {"s", 1}, {"h", 3600}, {"m", 60}};
  for (const auto& [unit, in_seconds] : kUnits) {
    if (!text.ends_with(unit)) continue;
    double number = 0;
    if (!whole(text.substr(0, text.size() - unit.size()), number)) break;
    const double seconds = number * in_seconds;
    if (!std::isfinite(seconds) || seconds < 0.01 || seconds > 31536000) break;
    out.time = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    return {};
  }
  return wrong(row, text);
}

Status parse(const Row& row, std::string_view text, std::uint64_t& out) {
  return whole(text, out) ? Status{} : wrong(row, text);
}

template <std::integral T>
Status parse(const Row& row, std::string_view text, T& out) {
  std::int64_t value = 0;
  if (!whole(text, value) || value < row.lowest || value > row.highest) return wrong(row, text);
  out = static_cast<T>(value);
  return {};
}

Status parse(const Row& row, std::string_view text, Duration& out) {
  double seconds = 0;
  if (!whole(text, seconds) || !std::isfinite(seconds) ||
      seconds > static_cast<double>(row.highest)) {
    return wrong(row, text);
  }
  if (seconds >= 0 && seconds < static_cast<double>(row.lowest)) return wrong(row, text);
  out = seconds < 0 ? kNever
                    : std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  return {};
}

// "[::1]" is how an IPv6 address is written before a port.
void drop_brackets(std::string& host) {
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
}

// Refuses a negative number, which looks like a rank.
Status check_node_id(const std::string& node_id) {
  const bool negative = node_id.size() > 1 && node_id[0] == '-' &&
                        node_id.find_first_not_of("0123456789", 1) == std::string::npos;
  if (!negative) return {};
  return Error{Blame::kUser, cat("MS_NODE_ID is '", node_id,
                                 "', which is no rank; allowed is a rank from 0, or a name")};
}

std::uint64_t random_bits() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

// Sets defaults that follow from other settings, and checks settings against one another.
Status complete(Settings& settings, const std::array<bool, std::size(kTable)>& given) {
  const auto is_given = [&](std::string_view field) {
    const auto row = std::find_if(std::begin(kTable), std::end(kTable),
                                  [&](const Row& r) { return r.field == field; });
    HF_ASSERT(row != std::end(kTable));
    return given[static_cast<std::size_t>(row - std::begin(kTable))];
  };
  if (settings.role != Role::kNone && !is_given("worker_num")) {
    return Error{Blame::kUser,
                 "MS_WORKER_NUM is not set: it says how many workers the job has, and every "
                 "process with an MS_ROLE needs it"};
  }
  if (settings.role == Role::kServer && settings.server_num == 0) {
    return Error{Blame::kUser,
                 "MS_SERVER_NUM is not set: it says how many parameter servers the job has, and "
                 "all its processes need it (this one has MS_ROLE=MS_PSERVER)"};
  }
  if (!is_given("node_id")) settings.node_id = cat("node-", random_bits());
  if (const auto good = check_node_id(settings.node_id); !good) return good;
  drop_brackets(settings.sched_host);
  if (!is_given("job")) settings.job = cat("port-", settings.sched_port);
  if (!is_given("incarnation")) settings.incarnation = random_bits();
  if (!is_given("scheduler_timeout")) settings.scheduler_timeout = settings.topo_timeout;
  return {};
}

Status check_known(std::string_view name) {
  if (!name.starts_with("HOLDFAST_")) return {};
  const auto belongs = [&](std::string_view word) {
    return name.starts_with(word) && (name.size() == word.size() || name[word.size()] == '_');
  };
  if (std::any_of(kNotOurs.begin(), kNotOurs.end(), belongs)) return {};
  const auto nearest =
      std::min_element(std::begin(kTable), std::end(kTable), [&](const Row& a, const Row& b) {
        return edit_distance(name, a.variable) < edit_distance(name, b.variable);
      });
  return Error{Blame::kUser, cat("the environment has ", name,
                                 ", which is no setting of Holdfast; the nearest is ",
                                 nearest->variable, " (`holdfast settings` lists all)")};
}

// Sets the field that the table has in this row.
Status set(std::size_t row, std::string_view text, Settings& settings) {
  std::size_t at = 0;
#define HF_SET(field, ...) \
  if (at++ == row) return parse(kTable[row], text, settings.field);
  HF_SETTINGS(HF_SET)
#undef HF_SET
  HF_ASSERT(false);
}

// Reads one variable of the environment. Ignores it if it is empty or not ours.
Status take(std::string_view name, std::string_view value, Settings& settings,
            std::array<bool, std::size(kTable)>& given) {
  for (std::size_t row = 0; row < std::size(kTable); ++row) {
    if (name != kTable[row].variable) continue;
    if (value.empty()) return {};
    given[row] = true;
    return set(row, value, settings);
  }
  return check_known(name);
}

// How many processes mpirun has started.
constexpr std::array<std::string_view, 3> kSizesOfOthers = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                                            "MV2_COMM_WORLD_SIZE"};

void note_other_launcher(std::string_view name, std::string_view value, Settings& settings) {
  std::int32_t size = 0;
  const bool sizes = std::count(kSizesOfOthers.begin(), kSizesOfOthers.end(), name) > 0;
  if (!sizes || !whole(value, size) || size <= settings.other_size) return;
  settings.other_launcher = cat(name, '=', value);
  settings.other_size = size;
}

Settings defaults() {
  Settings settings;
  for (std::size_t row = 0; row < std::size(kTable); ++row) {
    if (!is_derived(kTable[row])) HF_ASSERT(set(row, kTable[row].default_text, settings));
  }
  return settings;
}

}  // namespace

std::span<const Row> table() {
  return kTable;
}

std::span<const std::string_view> given_by_msrun() {
  return kGivenByMsrun;
}

std::string take_secret(char** environment, std::string_view variable) {
  std::string value;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const bool named =
        entry.starts_with(variable) && entry.substr(variable.size()).starts_with('=');
    if (!named) continue;
    value = entry.substr(variable.size() + 1);
    std::memset(*environment + variable.size() + 1, 0, value.size());
  }
  return value;
}

std::string allowed(const Row& row) {
  switch (row.kind) {
    case Kind::kRole:
      return "MS_SCHED or MS_WORKER";
    case Kind::kText:
    case Kind::kSecret:
      return "any text";
    case Kind::kName:
      return "a name of at most 100 letters, digits, '.', '_' and '-' that does not begin with '.'";
    case Kind::kFlag:
      return "0 or 1";
    case Kind::kWhole:
      return cat("a whole number from ", row.lowest, " to ", row.highest);
    case Kind::kBits:
      return "a whole number from 0 to 2^64 - 1";
    case Kind::kSeconds:
      return cat("a number of seconds from ", row.lowest, " to ", row.highest,
                 ", or a negative one: never");
    case Kind::kDrift:
      return "end or warn";
    case Kind::kEvery:
      return "a whole number of steps from 1; or a time from 10ms to a year, as in 30s, 5min or 2h";
    case Kind::kProcess:
      return "three whole numbers with ':' between";
  }
  HF_ASSERT(false);
}

std::optional<ProcessName> process_name(std::string_view text) {
  const auto first = text.find(':');
  const auto second = first == std::string_view::npos ? first : text.find(':', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  ProcessName name;
  const bool known = whole(text.substr(0, first), name.pid) && name.pid > 0 &&
                     whole(text.substr(first + 1, second - first - 1), name.start_time) &&
                     whole(text.substr(second + 1), name.pid_namespace);
  return known ? std::optional(name) : std::nullopt;
}

std::string markdown() {
  static constexpr std::string_view kByAgent = " Set by the agent.";
  const auto is_agents = [](const Row& row) { return row.help.ends_with(kByAgent); };
  const auto is_launchers = [&](const Row& row) {
    return !is_agents(row) &&
           std::count(kGivenByMsrun.begin(), kGivenByMsrun.end(), row.variable) > 0;
  };
  std::string text =
      "# Settings\n\n"
      "Made by `holdfast settings --markdown`; change `config/settings.h` and run it again.\n\n"
      "All settings are environment variables. One that is set but empty counts as unset. A wrong\n"
      "value, or a `HOLDFAST_` name that is not on this page, is an error before anything "
      "starts.\n\n"
      "## What you may set\n\n";
  const auto add = [&](const auto& belongs) {
    text +=
        "| variable | allowed | default | meaning |\n"
        "| --- | --- | --- | --- |\n";
    for (const Row& row : kTable) {
      if (!belongs(row)) continue;
      std::string_view help = row.help;
      if (is_agents(row)) help.remove_suffix(kByAgent.size());
      text += cat("| `", row.variable, "` | ", allowed(row), " | ",
                  row.default_text.empty() ? "unset" : cat("`", row.default_text, "`"), " | ", help,
                  " |\n");
    }
  };
  add([&](const Row& row) { return !is_agents(row) && !is_launchers(row); });
  text +=
      "\n## What you set only where you start the processes by hand\n\n"
      "`holdfast run` and `msrun` give these to each process, by their options. What their own\n"
      "environment says of them counts for nothing, right or wrong.\n\n";
  add(is_launchers);
  text +=
      "\n## What the agent sets\n\n"
      "The agent is what `holdfast run` or `msrun` leaves running beside the processes. A program "
      "may\n"
      "read these; nobody sets them by hand. `HOLDFAST_SPARE_FD` tells a spare from a worker. A "
      "spare that\n"
      "is bound to a rank (`--spares all`) has `MS_NODE_ID` as well, and under `holdfast run` "
      "`RANK` and\n"
      "`LOCAL_RANK`, from its start.\n\n";
  add(is_agents);
  return text;
}

Result<Settings> from_environment(const char* const* environment) {
  Settings settings = defaults();
  std::array<bool, std::size(kTable)> given{};
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const auto equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    note_other_launcher(entry.substr(0, equals), entry.substr(equals + 1), settings);
    if (auto taken = take(entry.substr(0, equals), entry.substr(equals + 1), settings, given);
        !taken) {
      return taken.error();
    }
  }
  if (auto completed = complete(settings, given); !completed) return completed.error();
  return settings;
}

}  // namespace holdfast::config
