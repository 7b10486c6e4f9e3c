#include "runtime/worker/promotion.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "base/text.h"
#include "os/errors.h"

namespace holdfast::runtime {

Rank rank_of_bound_spare(const config::Settings& settings) {
  const std::string& name = settings.node_id;
  Rank rank = kNoRank;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
  const bool is_rank = error == std::errc{} && end == name.data() + name.size() && rank >= 0 &&
                       rank < settings.worker_num + settings.server_num;
  return settings.spare_fd >= 0 && is_rank ? rank : kNoRank;
}

Result<std::optional<Promotion>> wait_for_promotion(int fd) {
  std::string line;
  while (line.find('\n') == std::string::npos) {
    char bytes[256];
    const ssize_t got = ::read(fd, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return os::system_error(cat("cannot read descriptor ", fd, " (HOLDFAST_SPARE_FD), through ",
                                  "which msrun gives its spares a place; unset it elsewhere"),
                              errno);
    }
    if (got == 0) return std::optional<Promotion>{};
    line.append(bytes, static_cast<std::size_t>(got));
  }
  Promotion promotion;
  const auto space = line.find(' ');
  // After the attempt the line may say how the predecessor ended.
  const auto end = std::min(line.find('\n'), line.find(' ', space + 1));
  promotion.node_id = line.substr(0, space);
  if (space < end &&
      std::from_chars(line.data() + space + 1, line.data() + end, promotion.attempt).ptr ==
          line.data() + end) {
    return std::optional(std::move(promotion));
  }
  return Error{Blame::kPeer,
               cat("the agent sent a spare '", line.substr(0, end),
                   "', but a node id and an attempt were expected; all processes of a job must be "
                   "of the same release of Holdfast")};
}

}  // namespace holdfast::runtime
