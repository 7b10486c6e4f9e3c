#include "apps/testing/job.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/ask.h"
#include "base/assert.h"
#include "base/text.h"
#include "io/loop.h"
#include "os/fd.h"
#include "os/files.h"
#include "os/host.h"
#include "os/testing.h"
#include "runtime/jobs/job_files.h"

namespace holdfast::apps {
namespace {

constexpr const char* kOfARehearsal = "HOLDFAST_REHEARSE=";

namespace fs = std::filesystem;

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with("HOLDFAST_") && !text.starts_with("MS_")) entries.emplace_back(text);
  }
  return entries;
}

bool is_dead(pid_t pid) {
  const auto start = os::start_time(pid);
  return !start || !os::same_process_alive(pid, *start);
}

}  // namespace

bool until(const std::function<bool()>& condition, int seconds) {
  const Instant end = io::Loop::now() + std::chrono::seconds(seconds);
  while (!condition()) {
    if (io::Loop::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::vector<nlohmann::json> json_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  const auto text = os::read_file(path);
  for (std::size_t at = 0; text && at < text->size();) {
    const std::size_t end = std::min(text->find('\n', at), text->size());
    auto line = nlohmann::json::parse(text->substr(at, end - at), nullptr, false);
    if (line.is_object()) lines.push_back(std::move(line));
    at = end + 1;
  }
  return lines;
}

std::vector<std::string> toy_command(const Job& job, int steps) {
  fs::create_directories(job.folder + "/out");
  return {TOY,          "--steps", cat(steps), "--out", job.folder + "/out",
          "--elements", "1000",    "--pause",  "1000"};
}

std::vector<std::string> toy(const Job& job, int steps, std::vector<std::string> options) {
  options.insert(options.begin(), {"--join", "True"});
  for (const auto& word : toy_command(job, steps)) options.push_back(word);
  return options;
}

Job::Job(std::string_view test)
    : name(cat("test-", test, '-', ::getpid())),
      port(os::free_port()),
      environment(own_environment()) {
  std::string made = cat(fs::temp_directory_path().string(), "/holdfast-test-XXXXXX");
  HF_ASSERT(::mkdtemp(made.data()) != nullptr);
  folder = made;
  logs = folder + "/logs";
  environment.push_back("HOLDFAST_JOB=" + name);
}

Job::~Job() {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (waited_[i]) continue;
    (void)os::send_signal(children_[i].pidfd.get(), SIGKILL);
    (void)os::wait_for(children_[i].pidfd.get());
  }
  for (const pid_t pid : processes()) ::kill(pid, SIGKILL);
  std::error_code error;
  fs::remove_all(folder, error);
  fs::remove_all(cat("/dev/shm/holdfast-", ::geteuid(), '/', name), error);
}

void Job::launch(const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {MSRUN, "--master_port", cat(port), "--log_dir", logs};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  (void)start(argv, {});
}

std::size_t Job::start(const std::vector<std::string>& argv,
                       const std::vector<std::string>& more_environment) {
  os::SpawnOptions options{.argv = argv, .environment = environment};
  options.environment.insert(options.environment.end(), more_environment.begin(),
                             more_environment.end());
  options.output = folder + "/output";
  auto child = os::spawn(options);
  HF_ASSERT(child.has_value());
  children_.push_back(std::move(*child));
  waited_.push_back(false);
  return children_.size() - 1;
}

int Job::wait(std::size_t process, int seconds) {
  pollfd ended{children_.at(process).pidfd.get(), POLLIN, 0};
  const bool late = ::poll(&ended, 1, seconds * 1000) != 1;
  if (late) signal(process, SIGKILL);
  const auto exit = os::wait_for(children_.at(process).pidfd.get());
  waited_.at(process) = true;
  return late || !exit ? -1 : exit->shell_code();
}

void Job::signal(std::size_t process, int number) {
  (void)os::send_signal(children_.at(process).pidfd.get(), number);
}

std::vector<pid_t> Job::processes(const std::string& variable) const {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string number = entry->path().filename();
    if (number.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto text = os::read_file(entry->path().string() + "/environ");
    if (!text) continue;
    const std::string all = '\0' + *text;
    const auto has = [&](const std::string& words) {
      return all.find('\0' + words + '\0') != std::string::npos;
    };
    const auto pid = static_cast<pid_t>(std::stol(number));
    const bool is_asked_for = variable.starts_with(kOfARehearsal) || variable.empty();
    if (!is_asked_for && all.find('\0' + std::string(kOfARehearsal)) != std::string::npos) continue;
    if (has("HOLDFAST_JOB=" + name) && (variable.empty() || has(variable)) && !is_dead(pid)) {
      found.push_back(pid);
    }
  }
  return found;
}

bool Job::kill(const std::string& variable, int number) const {
  const auto found = processes(variable);
  const auto newest = std::max_element(found.begin(), found.end(), [](pid_t a, pid_t b) {
    return std::pair(os::start_time(a).value_or(0), a) <
           std::pair(os::start_time(b).value_or(0), b);
  });
  return newest != found.end() && ::kill(*newest, number) == 0;
}

nlohmann::json Job::whole_status() const {
  runtime::FoundJob job{.name = name, .directory = os::runtime_path(name)};
  job.scheduler = runtime::Keeper{.host = "127.0.0.1", .port = port};
  const auto said = ask_scheduler(job, wire::StatusQuery{}, std::chrono::seconds(2));
  const auto* status = said ? std::get_if<wire::StatusReply>(&*said) : nullptr;
  return status ? nlohmann::json::parse(status->json, nullptr, false) : nlohmann::json();
}

double Job::status(const char* key) const {
  const auto json = whole_status();
  return json.is_object() && json.contains(key) ? json[key].get<double>() : -1;
}

bool Job::reaches(double version) const {
  return until([&] { return status("version") >= version; });
}

void Job::go() const {
  ASSERT_TRUE(os::write_file_atomically(folder + "/out/go", ""));
}

std::string Job::output() const {
  return os::tail(folder + "/output", 200);
}

std::string Job::log(const std::string& file) const {
  return os::tail(cat(logs, '/', file), 200);
}

std::string Job::states(int ranks) const {
  std::string all;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto state = os::read_file(cat(folder, "/out/rank-", rank));
    all += state ? *state : "none";
  }
  return all;
}

bool Job::nothing_left() const {
  const std::string shared = cat("/dev/shm/holdfast-", ::geteuid(), '/', name);
  return until([&] { return processes().empty(); }, 5) && !fs::exists(shared);
}

}  // namespace holdfast::apps
