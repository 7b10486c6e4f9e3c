// A job for tests, under msrun or by hand: its processes, files and status. The destructor ends and
// removes all of it.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "os/process.h"
#include "os/spawn.h"

namespace holdfast::apps {

// Waits until `condition` holds, for at most `seconds`. Returns whether it does.
bool until(const std::function<bool()>& condition, int seconds = 60);

bool has(const std::string& text, const std::string& part);
std::size_t count(const std::string& text, const std::string& part);

// The lines of a file that are JSON objects.
std::vector<nlohmann::json> json_lines(const std::string& path);

class Job {
 public:
  explicit Job(std::string_view test);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Starts msrun with this job's port and log folder, and these arguments after them. Its output is
  // in output().
  void launch(const std::vector<std::string>& arguments);
  // Starts a process without an agent; returns its number for wait() and signal().
  std::size_t start(const std::vector<std::string>& argv,
                    const std::vector<std::string>& environment);

  // The exit code of the launcher, or of a process started by hand. -1: it did not end within
  // `seconds`, and was killed.
  int wait(int seconds = 60) { return wait(0, seconds); }
  int wait(std::size_t process, int seconds);
  void signal(std::size_t process, int number);
  [[nodiscard]] pid_t pid(std::size_t process) const { return children_.at(process).pid; }

  // Living processes of the job whose environment has the variable, for example "MS_ROLE=MS_SCHED";
  // all processes, if it is empty. Rehearsing processes only if it is empty or a variable of
  // theirs.
  [[nodiscard]] std::vector<pid_t> processes(const std::string& variable = {}) const;
  // Sends a signal to the newest process of processes(variable). Returns whether there was one.
  bool kill(const std::string& variable, int number = SIGKILL) const;

  // A number at the top level of the status, such as "version". -1: there is no answer.
  [[nodiscard]] double status(const char* key) const;
  [[nodiscard]] nlohmann::json whole_status() const;  // Null: there is no answer.
  [[nodiscard]] bool reaches(double version) const;
  void go() const;  // A toy with --hold or --lingers goes on.

  [[nodiscard]] std::string output() const;
  [[nodiscard]] std::string log(const std::string& name) const;
  // What the toys of the first `ranks` ranks have left, of which each says all of its state.
  [[nodiscard]] std::string states(int ranks = 2) const;
  // The folder in /dev/shm is gone and so is every process.
  [[nodiscard]] bool nothing_left() const;

  std::string name;
  std::string folder;  // For the test's files; the destructor removes it.
  std::string logs;
  std::uint16_t port = 0;
  std::vector<std::string> environment;  // For launch() and start(); may be added to.

 private:
  std::vector<os::Child> children_;
  std::vector<bool> waited_;
};

// The command line of a toy trainer with small steps; toy(): msrun's arguments that run it, after
// `options`.
std::vector<std::string> toy_command(const Job& job, int steps);
std::vector<std::string> toy(const Job& job, int steps, std::vector<std::string> options);

}  // namespace holdfast::apps
