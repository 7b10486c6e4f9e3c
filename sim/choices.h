// Choices: the one source of everything that may go one way or another in a simulated run.
//
// Whoever drives it decides how a run goes: at random, as a tape says, or through all tapes one
// after the other. A tape is the list of all answers of a run; the same tape gives the same run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/result.h"

namespace holdfast::sim {

using Tape = std::vector<std::uint32_t>;

class Choices {
 public:
  Choices() = default;
  virtual ~Choices() = default;
  Choices(const Choices&) = delete;
  Choices& operator=(const Choices&) = delete;

  // In [0, n). 0 is "nothing unusual happens". `rarity`: a random driver gives 0 in all but about
  // one of so many cases. Requires n > 0. A question with one answer is not asked.
  std::uint32_t pick(std::uint32_t n, std::uint32_t rarity = 1);

  [[nodiscard]] const Tape& tape() const { return tape_; }  // The answers so far.

 protected:
  virtual std::uint32_t draw(std::uint32_t n, std::uint32_t rarity) = 0;
  void forget() { tape_.clear(); }

 private:
  Tape tape_;
};

class Random final : public Choices {
 public:
  explicit Random(std::uint64_t seed) : prng_(seed) {}

 private:
  std::uint32_t draw(std::uint32_t n, std::uint32_t rarity) override;
  Prng prng_;
};

// Answers as the tape does; 0 beyond its end; too great an answer counts modulo n.
class Replay final : public Choices {
 public:
  explicit Replay(Tape answers) : answers_(std::move(answers)) {}

 private:
  std::uint32_t draw(std::uint32_t n, std::uint32_t rarity) override;
  Tape answers_;
  std::size_t next_ = 0;
};

// Goes through all tapes by counting: run, next(), run, ... until next() is false.
class Exhaustive final : public Choices {
 public:
  [[nodiscard]] bool next();

 private:
  std::uint32_t draw(std::uint32_t n, std::uint32_t rarity) override;
  Tape answers_;
  Tape limits_;
  std::size_t next_ = 0;
};

// A tape that is shorter and has smaller numbers, and for which `fails` is still true. Requires
// that it is true for `tape`. Ends after at most `limit` calls of it.
[[nodiscard]] Tape shrink(Tape tape, const std::function<bool(const Tape&)>& fails,
                          std::size_t limit = 20'000);

// As text: the world's name, then the answers that are not 0, each as place:answer.
[[nodiscard]] std::string to_text(const std::string& world, const Tape& tape);
struct NamedTape {
  std::string world;
  Tape tape;
};
[[nodiscard]] Result<NamedTape> from_text(const std::string& text);

}  // namespace holdfast::sim
