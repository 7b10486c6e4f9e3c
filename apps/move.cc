// `holdfast drain` and `holdfast move`.
#include <cstdio>
#include <string>
#include <variant>

#include "apps/ask.h"
#include "apps/commands.h"
#include "wording/reasons.h"

namespace holdfast::apps {

int move(const std::string& job, const std::string& from, const std::string& to, bool drains,
         int timeout_s) {
  const auto complain = [](const std::string& text, int code) {
    std::fprintf(stderr, "holdfast: %s\n", text.c_str());
    return code;
  };
  const auto chosen = choose_job(job);
  if (!chosen.job) return complain(chosen.why, chosen.code);
  const auto answer =
      ask_scheduler(*chosen.job, wire::Move{from, to, drains}, std::chrono::seconds(timeout_s));
  if (!answer) return complain(answer.error().what, 1);
  const auto* moved = std::get_if<wire::Moved>(&*answer);
  if (moved == nullptr) return complain("the scheduler does not know this command", 1);
  const std::string words = wording::in_words(moved->reason);
  if (moved->reason.kind != wire::Reason::Kind::kMoves) return complain(words, 1);
  std::printf("%s\n", words.c_str());
  return 0;
}

}  // namespace holdfast::apps
