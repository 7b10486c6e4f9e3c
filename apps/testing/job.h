// A job under msrun, or by hand, for tests: its processes, files and status; nothing of it
// survives.
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

// Until `condition` holds, for at most `seconds`; whether it came to hold.
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

  // Starts msrun on our port and logs; what is given follows. Its own output is in output().
  void launch(const std::vector<std::string>& arguments);
  // Starts a process without an agent; returns its number.
  std::size_t start(const std::vector<std::string>& argv,
                    const std::vector<std::string>& environment);

  // The exit code of the launcher, or of a process started by hand; -1 where it did not end within
  // `seconds` (it is killed then).
  int wait(int seconds = 60) { return wait(0, seconds); }
  int wait(std::size_t process, int seconds);
  void signal(std::size_t process, int number);
  [[nodiscard]] pid_t pid(std::size_t process) const { return children_.at(process).pid; }

  // Living processes of the job (launched or of theirs), by their environment; all if no variable
  // is given: processes("MS_ROLE=MS_SCHED"). Rehearsals only by their own variable, or if none is.
  [[nodiscard]] std::vector<pid_t> processes(const std::string& variable = {}) const;
  // Sends the newest such process a signal; whether there was one.
  bool kill(const std::string& variable, int number = SIGKILL) const;

  // The status's value of a number at its top level ("version"); -1 where there is no answer.
  [[nodiscard]] double status(const char* key) const;
  [[nodiscard]] bool reaches(double version) const;

  [[nodiscard]] std::string output() const;
  [[nodiscard]] std::string log(const std::string& name) const;
  // The folder in /dev/shm is gone and so is every process.
  [[nodiscard]] bool nothing_left() const;

  std::string name;
  std::string folder;  // Scratch; removed.
  std::string logs;
  std::uint16_t port = 0;
  std::vector<std::string> environment;  // For launch() and start(); may be added to.

 private:
  std::vector<os::Child> children_;
  std::vector<bool> waited_;
};

// The words that start a toy trainer of small steps, and msrun's that run it after `options`.
std::vector<std::string> toy_command(const Job& job, int steps);
std::vector<std::string> toy(const Job& job, int steps, std::vector<std::string> options);

}  // namespace holdfast::apps
