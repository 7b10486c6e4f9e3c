#include "apps/timeline/read.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "apps/timeline/clocks.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/fd.h"
#include "os/files.h"

namespace holdfast::apps::timeline {
namespace {

using Json = nlohmann::json;

bool is_time(std::int64_t t_ns) {
  return t_ns > 0 && t_ns < kLatest;
}

bool is_rank(std::int64_t rank) {
  return rank >= -1 && rank < (1 << 20);
}

template <class T>
T number(const Json& json, const char* key, T otherwise) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<T>() : otherwise;
}

std::string text(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) return {};
  return found->get_ref<const std::string&>().substr(0, kLongestWord);
}

// Reads the fields of a step in the order in which io/trace.h writes them. That is faster than to
// parse them as JSON, and nearly all lines of a trace are steps.
class Walk {
 public:
  explicit Walk(std::string_view line) : at_(line.data()), end_(line.data() + line.size()) {}
  template <class T>
  bool field(std::string_view before, T& value) {
    if (!literal(before)) return false;
    const auto [next, error] = std::from_chars(at_, end_, value);
    at_ = next;
    return error == std::errc();
  }
  bool literal(std::string_view expected) {
    if (static_cast<std::size_t>(end_ - at_) < expected.size()) return false;
    if (std::memcmp(at_, expected.data(), expected.size()) != 0) return false;
    at_ += expected.size();
    return true;
  }

 private:
  const char* at_;
  const char* end_;
};

std::optional<Step> step_of(std::string_view line) {
  Walk walk(line);
  Step step;
  std::int64_t pid = 0;
  const bool is_step =
      walk.field(R"({"t_ns":)", step.t_ns) && walk.field(R"(,"event":"step","pid":)", pid) &&
      walk.field(R"(,"rank":)", step.rank) && walk.field(R"(,"step":)", step.step) &&
      walk.literal(",") && line.back() == '}';
  if (!is_step || !is_time(step.t_ns) || !is_rank(step.rank)) return std::nullopt;
  return step;
}

std::optional<Event> event_of(std::string_view line) {
  const auto json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  Event event;
  event.t_ns = number<std::int64_t>(json, "t_ns", 0);
  event.name = text(json, "event");
  event.rank = number<std::int64_t>(json, "rank", -1);
  if (!is_time(event.t_ns) || event.name.empty() || !is_rank(event.rank)) return std::nullopt;
  event.generation = number<std::uint64_t>(json, "generation", 0);
  event.version = number<std::uint64_t>(json, event.name == "step" ? "step" : "version", 0);
  event.detected_ns = number<std::int64_t>(json, "detected_ns", 0);
  if (!is_time(event.detected_ns)) event.detected_ns = 0;
  event.process = number<std::int64_t>(json, "process", 0);
  event.child = number<std::int64_t>(json, "child", 0);
  event.exit_code = number<std::int64_t>(json, "exit_code", 0);
  event.role = text(json, "role");
  event.node = text(json, "node");
  for (const char* key : {"text", "how", "reason", "job"}) {
    if (event.text.empty()) event.text = text(json, key);
  }
  return event;
}

// Reads one file. The user chose the folder, and others may be able to write there: so only files
// that this user owns are read.
Result<File> read_one(const os::Fd& folder, const std::string& path, const std::string& name,
                      File file) {
  const auto opened = os::open_own_file({folder.get(), path, name}, O_RDONLY);
  if (!opened) return opened.error();
  struct stat about {};
  if (!*opened || ::fstat(opened->get(), &about) != 0) {
    return os::system_error(cat("cannot open ", path, '/', name), errno);
  }
  // A step takes about 110 bytes in the file. Reserving avoids that the vector grows many times.
  file.steps.reserve(
      std::min<std::size_t>(static_cast<std::size_t>(about.st_size) / 110 + 1, kMostSteps));
  LineReader reader(file);
  std::vector<char> block(1 << 20);
  // Reads up to the size at the beginning: a process that still runs goes on writing.
  for (auto left = static_cast<std::size_t>(about.st_size); left > 0;) {
    const ssize_t got = ::read(opened->get(), block.data(), std::min(left, block.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os::system_error(cat("cannot read ", path, '/', name), errno);
    if (got == 0) break;
    reader.feed({block.data(), static_cast<std::size_t>(got)});
    left -= static_cast<std::size_t>(got);
  }
  reader.end();
  return file;
}

void complain_of_lines(Traces& traces, std::size_t broken, std::size_t left_out) {
  if (broken > 0) {
    traces.complaints.push_back(cat(counted(static_cast<std::int64_t>(broken), "line"),
                                    " of the traces ", broken == 1 ? "is" : "are",
                                    " broken or too long, and left out"));
  }
  if (left_out > 0) {
    traces.complaints.push_back(cat(counted(static_cast<std::int64_t>(left_out), "event"),
                                    " left out: a picture takes at most ", kMostSteps,
                                    " steps and ", kMostEvents, " other events of a process"));
  }
}

}  // namespace

std::int64_t File::first_ns() const {
  const std::int64_t event = events.empty() ? kLatest : events.front().t_ns;
  return std::min(event, steps.empty() ? kLatest : steps.front().t_ns);
}

std::int64_t File::last_ns() const {
  const std::int64_t event = events.empty() ? 0 : events.back().t_ns;
  return std::max(event, steps.empty() ? 0 : steps.back().t_ns);
}

bool parse_name(std::string_view name, File& file) {
  constexpr std::string_view kEnd = ".jsonl";
  const std::size_t dash = name.find('-');
  if (dash == std::string_view::npos || !name.ends_with(kEnd)) return false;
  const std::string_view writer = name.substr(0, dash);
  const char* const last = name.data() + name.size() - kEnd.size();
  const std::size_t before_pid = name.rfind('-');  // The host's name may have '-', too.
  file.host = dash < before_pid ? name.substr(dash + 1, before_pid - dash - 1) : "";
  const auto [end, error] = std::from_chars(name.data() + before_pid + 1, last, file.pid);
  if (error != std::errc() || end != last || file.pid <= 0) return false;
  file.writer = writer == "agent"       ? Writer::kAgent
                : writer == "scheduler" ? Writer::kScheduler
                                        : Writer::kWorker;
  return writer == "agent" || writer == "scheduler" || writer == "worker";
}

void LineReader::line(std::string_view text) {
  if (text.empty()) return;
  if (const auto step = step_of(text)) {
    if (file_.steps.size() < kMostSteps) {
      file_.steps.push_back(*step);
    } else {
      ++file_.left_out;
    }
    return;
  }
  auto event = event_of(text);
  if (!event) {
    ++file_.broken;
  } else if (event->name == "clock") {
    clock(text);
  } else if (event->name == "step" && file_.steps.size() < kMostSteps) {
    file_.steps.push_back({event->t_ns, static_cast<std::uint32_t>(event->version),
                           static_cast<std::int32_t>(event->rank)});
  } else if (event->name != "step" && file_.events.size() < kMostEvents) {
    file_.events.push_back(*std::move(event));
  } else {
    ++file_.left_out;
  }
}

// Only the first clock line counts: a process with the same pid may have appended to the file.
void LineReader::clock(std::string_view line) {
  const auto json = Json::parse(line, nullptr, false);
  const auto wall_ns = number<std::int64_t>(json, "wall_ns", 0);
  if (!file_.boot.empty() || !is_time(wall_ns)) return;
  file_.boot = text(json, "boot");
  file_.wall_ahead_ns = wall_ns - number<std::int64_t>(json, "t_ns", 0);
}

void LineReader::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    const bool whole = end != std::string_view::npos;
    if (too_long_ || begun_.size() + part.size() > kLongestLine) {
      if (!too_long_) ++file_.broken;
      too_long_ = !whole;
      begun_.clear();
    } else if (whole && begun_.empty()) {
      line(part);
    } else {
      begun_ += part;
      if (whole) line(std::exchange(begun_, {}));
    }
    bytes.remove_prefix(whole ? end + 1 : bytes.size());
  }
}

void LineReader::end() {
  if (!begun_.empty()) ++file_.broken;
  begun_.clear();
  too_long_ = false;
  // Threads of a process write at the same time, so lines may be out of order.
  const auto earlier = [](const auto& a, const auto& b) { return a.t_ns < b.t_ns; };
  std::stable_sort(file_.events.begin(), file_.events.end(), earlier);
  if (!std::is_sorted(file_.steps.begin(), file_.steps.end(), earlier)) {
    std::stable_sort(file_.steps.begin(), file_.steps.end(), earlier);
  }
}

std::size_t keep_newest_run(std::vector<File>& files) {
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) {
    return std::pair(a.first_ns(), a.pid) < std::pair(b.first_ns(), b.pid);
  });
  std::int64_t until = 0;
  std::size_t newest = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].first_ns() > until) newest = i;
    until = std::max(until, files[i].last_ns());
  }
  files.erase(files.begin(), files.begin() + static_cast<std::ptrdiff_t>(newest));
  return newest;
}

Result<Traces> read_traces(const std::string& path) {
  const auto none = [&](const std::string& why) {
    return Error{Blame::kUser, cat(why, ". Start the job with HOLDFAST_TRACE=", path,
                                   ", and every process writes its events there")};
  };
  const os::Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder && errno == ENOENT) return none(cat("there is no folder ", path));
  if (!folder) return os::system_error(cat("cannot open the folder of traces ", path), errno);
  Traces traces;
  std::size_t broken = 0;
  std::size_t left_out = 0;
  std::size_t seen = 0;
  for (const auto& name : os::names_in(path)) {
    File file;
    if (!parse_name(name, file)) continue;
    if (++seen > kMostFiles) continue;
    auto read = read_one(folder, path, name, std::move(file));
    if (!read) {
      traces.complaints.push_back(cat("left out: ", read.error().what));
      continue;
    }
    broken += read->broken;
    left_out += read->left_out;
    if (!read->empty()) traces.files.push_back(*std::move(read));
  }
  complain_of_lines(traces, broken, left_out);
  if (seen > kMostFiles) {
    traces.complaints.push_back(
        cat(path, " has ", seen, " traces; the first ", kMostFiles, " by name are drawn"));
  }
  if (traces.files.empty()) {
    std::string why = cat("there are no traces in ", path);
    for (const auto& complaint : traces.complaints) why += cat("; ", complaint);
    return none(why);
  }
  if (const std::size_t clocks = set_on_one_clock(traces.files); clocks > 1) {
    traces.complaints.push_back(
        cat("the traces are of ", clocks,
            " hosts, each with a clock of its own, and are set against each "
            "other by the hosts' wall clocks: as exact as these agree"));
  }
  if (const std::size_t earlier = keep_newest_run(traces.files); earlier > 0) {
    traces.complaints.push_back(cat(path, " has traces of an earlier run too (",
                                    counted(static_cast<std::int64_t>(earlier), "file"),
                                    "); the newest run is drawn"));
  }
  return traces;
}

}  // namespace holdfast::apps::timeline
