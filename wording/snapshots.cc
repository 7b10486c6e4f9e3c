#include "wording/snapshots.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/text.h"

namespace holdfast::wording {
namespace {

using wire::Reason;
using Kind = Reason::Kind;
using Words = std::span<const std::string_view>;

std::vector<std::string_view> words_of(std::string_view program) {
  std::vector<std::string_view> words;
  while (!program.empty()) {
    const std::size_t end = std::min(program.find('\n'), program.size());
    words.push_back(program.substr(0, end));
    program.remove_prefix(std::min(end + 1, program.size()));
  }
  return words;
}

std::string in_quotes(Words words) {
  constexpr std::size_t kLongest = 200;
  std::string text;
  for (const std::string_view word : words) {
    text += cat(text.empty() ? "" : " ", printable(word.substr(0, kLongest)));
    if (text.size() > kLongest) return cat('`', text.substr(0, kLongest), "...`");
  }
  return cat('`', text, '`');
}

}  // namespace

std::string of_snapshot(const Reason& r) {
  const std::string who = r.rank != kNoRank ? cat("rank ", r.rank, ": ")
                          : r.host.empty()  ? ""
                                            : cat("host ", r.host, ": ");
  switch (r.kind) {
    case Kind::kFromSnapshot:
      return cat("begins again from the snapshot of step ", r.version, " (", r.detail, ")",
                 r.count == 0 ? ""
                              : cat(": ", counted(r.count, "step"), r.count == 1 ? " is" : " are",
                                    " made again"));
    case Kind::kSnapshotFailed:
      return cat("no snapshot of step ", r.version, ": ", who, r.detail,
                 ". The training goes on, and the next one is tried when it is due");
    case Kind::kSnapshotUnreadable:
      return cat("the snapshot of step ", r.version, " can not be used: ", who, r.detail);
    case Kind::kSnapshotFirst:
      return cat("signal ", r.count, ": makes a snapshot before it ends, within ", r.total,
                 " s (another signal ends this)");
    case Kind::kSnapshotMade:
      return cat("the snapshot of step ", r.version, " (", r.detail,
                 ") is on the disk: --resume goes on from it");
    case Kind::kSnapshotLacking:
      return cat("ends without a new snapshot: ", r.detail.empty() ? "it took too long" : r.detail);
    case Kind::kStopped:
      return "stopped, as `holdfast stop` has asked for";
    default:
      return {};
  }
}

std::string command_line(std::string_view program) {
  std::string text(program.substr(0, program.size() - program.ends_with('\n')));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return printable(text);
}

std::string change_of_program(std::string_view was, std::string_view now) {
  const auto old_words = words_of(was), new_words = words_of(now);
  Words before = old_words, after = new_words;
  const auto same =
      static_cast<std::size_t>(std::ranges::mismatch(before, after).in1 - before.begin());
  if (same == before.size() && same == after.size()) return {};
  // The name of an option whose value alone differs tells more than the value.
  const bool is_value = same > 0 && before[same - 1].starts_with('-');
  before = before.subspan(same - (is_value ? 1 : 0));
  after = after.subspan(same - (is_value ? 1 : 0));
  while (!before.empty() && !after.empty() && before.back() == after.back()) {
    before = before.first(before.size() - 1);
    after = after.first(after.size() - 1);
  }
  if (after.empty()) return cat(in_quotes(before), " is left out");
  return before.empty() ? cat(in_quotes(after), " is new")
                        : cat(in_quotes(after), " was ", in_quotes(before));
}

}  // namespace holdfast::wording
