// Watch: a thread that asks a job's scheduler again and again, however many people look.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "apps/web/record.h"

namespace holdfast::apps::web {

// What came of asking. Both may be set: the last status of a job that has ended.
struct Answer {
  std::optional<std::string> status;  // JSON.
  std::string why_not;                // Empty: the scheduler answers.
};

// All of it is thread-safe.
class Watch {
 public:
  // Calls `ask` at once, and then a second after each answer. It leaves out more time if an answer
  // takes longer than 50 ms, so that the scheduler spends at most a twentieth of its own on it.
  explicit Watch(std::function<Answer()> ask);

  // What `make` makes of the newest record. It is called once for each answer and `key`: others who
  // ask for the same get the same text.
  std::string text(const std::string& key,
                   const std::function<std::string(const Record&, Seconds now)>& make);

  // Blocks until the first answer has come.
  void wait();

 private:
  void run(const std::stop_token& stop);

  std::function<Answer()> ask_;
  std::mutex mutex_;  // Guards what follows.
  std::condition_variable_any changed_;
  Record record_;
  bool has_asked_ = false;
  std::map<std::string, std::string> made_;  // Of the newest answer.
  std::jthread thread_;                      // The last member: it uses all others.
};

}  // namespace holdfast::apps::web
