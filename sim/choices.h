// Choices: the only source of nondeterminism in a simulated run.
//
// Its classes are drivers, which decide how a run goes: at random, as a tape says, or through all
// tapes one after the other. A tape is the list of all answers of a run; the same tape gives the
// same run.
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

  // A number in [0, n). 0 means "nothing unusual happens". `rarity`: a random driver returns
  // another number than 0 in about one of `rarity` cases only. Requires n > 0. If n is 1, the
  // driver is not asked, and the tape gets no answer.
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

// Gives the answers of the tape, modulo n, and 0 beyond its end.
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

// Finds a tape that is shorter and has smaller numbers, and for which `fails` is still true.
// Requires: `fails` is true for `tape`. Calls `fails` at most `limit` times.
[[nodiscard]] Tape shrink(Tape tape, const std::function<bool(const Tape&)>& fails,
                          std::size_t limit = 20'000);

// The tape as text: the world's name, then the answers that are not 0, each as index:answer.
[[nodiscard]] std::string to_text(const std::string& world, const Tape& tape);
struct NamedTape {
  std::string world;
  Tape tape;
};
[[nodiscard]] Result<NamedTape> from_text(const std::string& text);

}  // namespace holdfast::sim
