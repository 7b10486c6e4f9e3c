// Replays the transcripts beside it. A line that begins with ">" is what happens to a machine; what
// follows is what it does, and after "=" its state. The folder names the machine. With --rewrite
// the files are written anew, to be read as a diff.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/transcripts/players.h"
#include "tests/transcripts/rewrite.h"

namespace holdfast::transcripts {
namespace {

std::unique_ptr<Player> player_for(const std::filesystem::path& path) {
  const std::string machine = path.parent_path().filename();
  if (machine == "controller") return controller_player();
  if (machine == "trainer") return trainer_player();
  return machine == "agent" ? agent_player() : nullptr;
}

class Transcript : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(Transcript, ShowsWhatTheMachineDoes) {
  std::ifstream file(GetParam());
  const auto player = player_for(GetParam());
  ASSERT_NE(player, nullptr);
  std::string expected;
  std::string played;
  std::string line;
  while (std::getline(file, line)) {
    expected += line + "\n";
    if (line.empty() || line.starts_with('#')) played += line + "\n";
    if (!line.starts_with('>')) continue;
    played += line + "\n";
    for (const auto& action : player->play(line.substr(2))) played += "  " + action + "\n";
    played += "  = " + player->state() + "\n";
  }
  if (rewrite) {
    std::ofstream(GetParam()) << played;
    return;
  }
  EXPECT_EQ(played, expected) << GetParam();
}

std::vector<std::filesystem::path> transcripts() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(HF_TRANSCRIPTS)) {
    if (entry.path().extension() == ".txt" && entry.path().filename() != "CMakeLists.txt")
      paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

INSTANTIATE_TEST_SUITE_P(All, Transcript, ::testing::ValuesIn(transcripts()), [](const auto& file) {
  return file.param.parent_path().filename().string() + "_" + file.param.stem().string();
});

}  // namespace
}  // namespace holdfast::transcripts
