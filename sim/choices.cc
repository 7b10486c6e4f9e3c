// The drivers of Choices, the shrinker, and tapes as text.
#include "sim/choices.h"

#include <algorithm>
#include <sstream>

#include "base/text.h"

namespace holdfast::sim {

std::uint32_t Choices::pick(std::uint32_t n, std::uint32_t rarity) {
  if (n <= 1) return 0;
  const std::uint32_t answer = draw(n, rarity);
  tape_.push_back(answer);
  return answer;
}

std::uint32_t Random::draw(std::uint32_t n, std::uint32_t rarity) {
  if (rarity > 1 && prng_.below(rarity) != 0) return 0;
  return static_cast<std::uint32_t>(prng_.below(n));
}

std::uint32_t Replay::draw(std::uint32_t n, std::uint32_t) {
  return next_ < answers_.size() ? answers_[next_++] % n : 0;
}

std::uint32_t Exhaustive::draw(std::uint32_t n, std::uint32_t) {
  if (next_ == answers_.size()) {
    answers_.push_back(0);
    limits_.push_back(n);
  }
  return answers_[next_++];
}

bool Exhaustive::next() {
  answers_.resize(next_);
  limits_.resize(next_);
  while (!answers_.empty() && answers_.back() + 1 >= limits_.back()) {
    answers_.pop_back();
    limits_.pop_back();
  }
  next_ = 0;
  forget();
  if (answers_.empty()) return false;
  ++answers_.back();
  return true;
}

namespace {

class Shrinker {
 public:
  Shrinker(Tape tape, const std::function<bool(const Tape&)>& fails, std::size_t limit)
      : best_(std::move(tape)), fails_(fails), left_(limit) {}

  Tape run() {
    std::size_t before = left_ + 1;
    while (left_ > 0 && before != best_cost()) {
      before = best_cost();
      cut_end();
      clear_blocks();
      delete_blocks();
      lower();
    }
    return best_;
  }

 private:
  [[nodiscard]] std::size_t best_cost() const {
    std::size_t cost = best_.size();
    for (const auto answer : best_) cost += answer;
    return cost;
  }

  bool accept(Tape candidate) {
    if (left_ == 0) return false;
    --left_;
    if (!fails_(candidate)) return false;
    best_ = std::move(candidate);
    return true;
  }

  void cut_end() {
    for (std::size_t keep = 0; keep < best_.size(); keep = keep * 2 + 1) {
      if (accept(Tape(best_.begin(), best_.begin() + static_cast<std::ptrdiff_t>(keep)))) return;
    }
  }

  void clear_blocks() {
    for (std::size_t block = best_.size(); block >= 1; block /= 2) {
      for (std::size_t at = 0; at < best_.size(); at += block) {
        Tape candidate = best_;
        const auto from = candidate.begin() + static_cast<std::ptrdiff_t>(at);
        const auto to =
            candidate.begin() + static_cast<std::ptrdiff_t>(std::min(at + block, best_.size()));
        if (std::all_of(from, to, [](std::uint32_t answer) { return answer == 0; })) continue;
        std::fill(from, to, 0);
        accept(std::move(candidate));
      }
    }
  }

  void delete_blocks() {
    for (std::size_t block = std::min<std::size_t>(best_.size(), 32); block >= 1; block /= 2) {
      for (std::size_t at = 0; at + block <= best_.size();) {
        Tape candidate = best_;
        const auto from = candidate.begin() + static_cast<std::ptrdiff_t>(at);
        candidate.erase(from, from + static_cast<std::ptrdiff_t>(block));
        if (!accept(std::move(candidate))) at += block;
        if (left_ == 0) return;
      }
    }
  }

  void lower() {
    for (std::size_t at = 0; at < best_.size(); ++at) {
      for (std::uint32_t answer = 0; answer < best_[at]; ++answer) {
        Tape candidate = best_;
        candidate[at] = answer;
        if (accept(std::move(candidate)) || left_ == 0) break;
      }
    }
  }

  Tape best_;
  const std::function<bool(const Tape&)>& fails_;
  std::size_t left_;
};

}  // namespace

Tape shrink(Tape tape, const std::function<bool(const Tape&)>& fails, std::size_t limit) {
  return Shrinker(std::move(tape), fails, limit).run();
}

std::string to_text(const std::string& world, const Tape& tape) {
  std::string text = world;
  for (std::size_t at = 0; at < tape.size(); ++at) {
    if (tape[at] != 0) text += cat(' ', at, ':', tape[at]);
  }
  return text + "\n";
}

Result<NamedTape> from_text(const std::string& text) {
  std::istringstream in(text);
  NamedTape result;
  std::size_t at = 0;
  std::uint32_t answer = 0;
  char colon = 0;
  if (!(in >> result.world)) return Error{Blame::kUser, "a tape begins with its world's name"};
  while (in >> at >> colon >> answer) {
    if (colon != ':' || at > 1'000'000) {
      return Error{Blame::kUser, "a tape is a list of place:answer"};
    }
    if (result.tape.size() <= at) result.tape.resize(at + 1);
    result.tape[at] = answer;
  }
  if (!in.eof()) return Error{Blame::kUser, "a tape is a list of place:answer"};
  return result;
}

}  // namespace holdfast::sim
