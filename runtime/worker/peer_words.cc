#include "runtime/worker/peer_words.h"

#include <algorithm>
#include <concepts>
#include <utility>

#include "base/assert.h"
#include "base/text.h"

namespace holdfast::runtime {
namespace {

constexpr std::string_view kHelloMagic = "HFP1";
constexpr std::size_t kHelloBytes = 36;  // Without the group's name.
constexpr std::size_t kNameSizeAt = 6;

constexpr std::string_view kAnswerMagic = "HFS1";
constexpr std::size_t kAnswerBytes = 24;  // Then come the ranges, or the refusal.
constexpr std::size_t kRangeBytes = 16;
constexpr char kFollows = 1;
constexpr char kRefused = 2;

template <std::unsigned_integral T>
void put(std::string& out, T number) {
  for (std::size_t i = 0; i < sizeof number; ++i) {
    out += static_cast<char>(static_cast<std::uint64_t>(number) >> (8 * i) & 0xffU);
  }
}

template <std::unsigned_integral T>
T take(std::string_view& bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    number |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  bytes.remove_prefix(sizeof(T));
  return static_cast<T>(number);
}

Rank take_rank(std::string_view& bytes) {
  return static_cast<Rank>(take<std::uint32_t>(bytes));
}

// The size of the group's name, which follows the fixed part of a hello.
std::size_t name_size(std::string_view hello) {
  auto of_size = hello.substr(kNameSizeAt);
  return take<std::uint16_t>(of_size);
}

// The size of what follows the head's fixed part. Not sound: it is out of bounds, and no more is
// read.
struct Rest {
  bool is_sound = false;
  std::size_t bytes = 0;
};
Rest rest_of(std::string_view head) {
  const char answer = head[kAnswerMagic.size()];
  auto of_count = head.substr(8);
  const std::size_t count = take<std::uint32_t>(of_count);
  if (answer == kFollows) return {count <= kMostStateRanges, count * kRangeBytes};
  return {answer == kRefused && count != 0 && count <= kLongestRefusal, count};
}

Error nonsense(const char* what) {
  return {Blame::kPeer, cat("it says ", what, ": are all workers of the same release?")};
}

}  // namespace

std::string encode(const PeerHello& hello) {
  HF_ASSERT(hello.group.size() <= kLongestGroupName);
  std::string out(kHelloMagic);
  out += static_cast<char>(hello.what);
  out += '\0';
  put(out, static_cast<std::uint16_t>(hello.group.size()));
  put(out, hello.run_id);
  put(out, hello.number);
  put(out, static_cast<std::uint32_t>(hello.from));
  put(out, static_cast<std::uint32_t>(hello.to));
  put(out, hello.channel);
  return out + hello.group;
}

std::size_t missing_of_hello(std::string_view so_far) {
  const auto beginning = so_far.substr(0, kHelloMagic.size());
  if (!kHelloMagic.starts_with(beginning)) return 0;
  if (so_far.size() < kHelloBytes) return kHelloBytes - so_far.size();
  const std::size_t name = name_size(so_far);
  if (name > kLongestGroupName) return 0;
  return kHelloBytes + name - std::min(so_far.size(), kHelloBytes + name);
}

Result<PeerHello> decode_hello(std::string_view bytes) {
  if (bytes.size() < kHelloBytes || !bytes.starts_with(kHelloMagic)) {
    return nonsense("nothing that a worker says first");
  }
  const std::size_t name = name_size(bytes);
  if (name > kLongestGroupName || bytes.size() != kHelloBytes + name) {
    return nonsense("a group's name of another length than it has announced");
  }
  const char what = bytes[4];
  if ((what != 1 && what != 2) || bytes[5] != 0) return nonsense("what no worker wants");
  bytes.remove_prefix(kNameSizeAt + 2);
  PeerHello hello{.what = static_cast<PeerHello::What>(what)};
  hello.run_id = take<std::uint64_t>(bytes);
  hello.number = take<std::uint64_t>(bytes);
  hello.from = take_rank(bytes);
  hello.to = take_rank(bytes);
  hello.channel = take<std::uint32_t>(bytes);
  hello.group = bytes;
  if (hello.from < 0 || hello.to < 0) return nonsense("a rank below 0");
  const bool is_plain = hello.channel == 0 && hello.group.empty();
  if (hello.what == PeerHello::What::kState && !is_plain) return nonsense("a state of a group");
  return hello;
}

std::string problem_of(const StateHead& head) {
  if (head.size > kLargestState) return cat("a state of ", head.size, " bytes is too large");
  if (head.ranges.size() > kMostStateRanges) {
    return cat("a state of ", head.ranges.size(), " ranges is too scattered");
  }
  std::uint64_t end = 0;
  for (const auto& [offset, length] : head.ranges) {
    const bool is_inside = offset <= head.size && length <= head.size - offset;
    if (offset < end || length == 0 || !is_inside) {
      return cat("a range of a state, ", length, " bytes at ", offset,
                 ", is empty, lies over the one before, or beyond the end, ", head.size);
    }
    end = offset + length;
  }
  return "";
}

std::string encode(const StateHead& head) {
  HF_ASSERT(problem_of(head).empty());
  const auto refusal = std::string_view(head.refusal).substr(0, kLongestRefusal);
  const std::size_t count = refusal.empty() ? head.ranges.size() : refusal.size();
  std::string out(kAnswerMagic);
  out += refusal.empty() ? kFollows : kRefused;
  out.append(3, '\0');
  put(out, static_cast<std::uint32_t>(count));
  put(out, std::uint32_t{0});
  put(out, refusal.empty() ? head.size : 0);
  if (!refusal.empty()) return out.append(refusal);
  for (const auto& [offset, length] : head.ranges) {
    put(out, offset);
    put(out, length);
  }
  return out;
}

std::size_t missing_of_head(std::string_view so_far) {
  const auto beginning = so_far.substr(0, kAnswerMagic.size());
  if (!kAnswerMagic.starts_with(beginning)) return 0;
  if (so_far.size() < kAnswerBytes) return kAnswerBytes - so_far.size();
  const auto rest = rest_of(so_far);
  if (!rest.is_sound) return 0;
  return kAnswerBytes + rest.bytes - std::min(so_far.size(), kAnswerBytes + rest.bytes);
}

Result<StateHead> decode_head(std::string_view bytes) {
  if (bytes.size() < kAnswerBytes || !bytes.starts_with(kAnswerMagic)) {
    return nonsense("nothing that a worker answers");
  }
  const auto [is_sound, rest] = rest_of(bytes);
  if (!is_sound || bytes.size() != kAnswerBytes + rest) return nonsense("an answer out of bounds");
  const bool is_refused = bytes[kAnswerMagic.size()] == kRefused;
  bytes.remove_prefix(kAnswerMagic.size() + 1);
  if (bytes.substr(0, 3) != std::string_view("\0\0\0", 3)) return nonsense("a reserved byte");
  bytes.remove_prefix(3 + 4);
  if (take<std::uint32_t>(bytes) != 0) return nonsense("a reserved number");
  StateHead head{.size = take<std::uint64_t>(bytes)};
  if (is_refused) {
    if (head.size != 0) return nonsense("the size of what it has not");
    head.refusal = printable(bytes);
    return head;
  }
  while (!bytes.empty()) {
    const auto offset = take<std::uint64_t>(bytes);
    head.ranges.push_back({offset, take<std::uint64_t>(bytes)});
  }
  if (auto problem = problem_of(head); !problem.empty()) return Error{Blame::kPeer, problem};
  return head;
}

}  // namespace holdfast::runtime
