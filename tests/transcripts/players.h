// Players: each brings the lines of a transcript to one machine, and says what it does.
#pragma once

#include <istream>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"

namespace holdfast::transcripts {

class Player {
 public:
  Player() = default;
  virtual ~Player() = default;
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  // What the machine does after `line`, one action an entry.
  virtual std::vector<std::string> play(const std::string& line) = 0;
  // The machine's state, in one line.
  [[nodiscard]] virtual std::string state() const = 0;
};

std::unique_ptr<Player> controller_player();
std::unique_ptr<Player> trainer_player();
std::unique_ptr<Player> agent_player();

// The next word as a version: a number, or "nothing".
Version version_in(std::istream& in);
std::string version_text(Version version);

}  // namespace holdfast::transcripts
