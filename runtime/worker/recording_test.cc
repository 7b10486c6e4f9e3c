#include "runtime/worker/recording.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/text.h"
#include "os/files.h"
#include "runtime/worker/recorder.h"

namespace holdfast::runtime {
namespace {

namespace fs = std::filesystem;
using collective::Exchange;
using collective::ExchangeKind;

class RecordingTest : public testing::Test {
 protected:
  RecordingTest() { fs::create_directories(folder_); }
  ~RecordingTest() override { fs::remove_all(folder_); }

  [[nodiscard]] Identity identity() const {
    return {.rank = 1, .local_rank = 1, .world_size = 2, .run_id = 7, .directory = folder_};
  }
  [[nodiscard]] std::string rehearsal() const {
    const std::string path = rehearsal_folder(folder_, 1);
    fs::create_directories(path);
    return path;
  }

  std::array<std::byte, 24> got_ = [] {
    std::array<std::byte, 24> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i);
    return bytes;
  }();
  const Exchange sum_{.kind = ExchangeKind::kReduction, .request = 3, .given = 99, .got = got_};
  const std::string folder_ = fs::temp_directory_path() /
                              cat("recording-test-", ::getpid(), "-",
                                  testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(RecordingTest, IsReadAsItWasWritten) {
  const std::string path = recording_path(rehearsal());
  {
    auto writer = RecordingWriter::make(path, 1 << 20);
    ASSERT_TRUE(writer);
    writer->note("its batch", 5);
    writer->exchange("", sum_);
    writer->exchange("tensor", {});
    writer->exchange("", sum_);
    ASSERT_TRUE(writer->is_whole());
  }
  const auto read = read_recording(path);
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(read->account.notes, (std::vector<understudy::Note>{{"its batch", 5}}));
  const auto& world = read->account.exchanges.at("");
  ASSERT_EQ(world.size(), 2U);
  EXPECT_EQ(world[1].name, name_of_exchange("", 1, sum_));
  EXPECT_EQ(world[1].digest, digest_of(sum_));
  EXPECT_EQ(read->account.exchanges.at("tensor")[0].name, name_of_exchange("tensor", 0, {}));
  EXPECT_EQ(std::memcmp(read->got.at("")[0].data(), got_.data(), got_.size()), 0);

  // An account of it is the same, without what was got.
  const std::string copy = cat(rehearsal(), "/former");
  for (const std::string otherwise : {"", "it ends"}) {
    understudy::Account account = read->account;
    account.otherwise = otherwise;
    RecordingWriter::make(copy, 1 << 20)->account(account);
    const auto again = read_recording(copy);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->account, account);
  }
}

TEST_F(RecordingTest, OneThatIsCutOffAnywhereIsDamagedOrShorter) {
  const std::string path = recording_path(rehearsal());
  {
    auto writer = RecordingWriter::make(path, 1 << 20);
    writer->note("its batch", 5);
    writer->exchange("tensor", sum_);
  }
  const std::string whole = *os::read_file(path);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole.substr(0, bytes);
    const auto read = read_recording(path);
    if (!read) continue;
    EXPECT_LE(read->account.notes.size() + read->account.exchanges.size(), 1U) << bytes;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {  // Whatever a byte of it says.
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x7f);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << damaged;
    (void)read_recording(path);
  }
}

TEST_F(RecordingTest, StopsAtItsLimit) {
  auto writer = RecordingWriter::make(recording_path(rehearsal()), 90);
  ASSERT_TRUE(writer);
  writer->exchange("", sum_);
  EXPECT_TRUE(writer->is_whole());
  writer->exchange("", sum_);
  EXPECT_FALSE(writer->is_whole());
}

TEST_F(RecordingTest, ARankRecordsTheStepThatIsAskedForAndNoOther) {
  auto recorder = Recorder::make(identity(), 1 << 20);
  ASSERT_TRUE(recorder);
  int shown = 0;
  const auto show = [&shown](const std::string&) {
    ++shown;
    return Status{};
  };
  EXPECT_FALSE((*recorder)->begin(4, show));  // Nobody asks.
  auto page = SamplePage::of(folder_, 1);
  ASSERT_TRUE(page);
  EXPECT_EQ(page->identity().run_id, 7U);
  (void)rehearsal();
  page->set(Sample::kWanted);
  ASSERT_TRUE((*recorder)->begin(5, show));
  (*recorder)->note("its batch", 1);
  (*recorder)->end(false);  // It was void.
  EXPECT_EQ(page->state(), Sample::kWanted);
  ASSERT_TRUE((*recorder)->begin(5, show));
  (*recorder)->note("its batch", 2);
  (*recorder)->record("", sum_);
  (*recorder)->end(true);
  EXPECT_EQ(page->state(), Sample::kReady);
  EXPECT_EQ(page->version(), 5U);
  EXPECT_FALSE((*recorder)->begin(6, show));
  EXPECT_EQ(shown, 2);
  const auto read = read_recording(recording_path(rehearsal()));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->account.notes, (std::vector<understudy::Note>{{"its batch", 2}}));
}

TEST_F(RecordingTest, ARankTrainsOnWhateverBecomesOfARecording) {
  const auto shows = [](const std::string&) { return Status{}; };
  auto recorder = Recorder::make(identity(), 40);
  ASSERT_TRUE(recorder);
  auto page = SamplePage::of(folder_, 1);
  page->set(Sample::kWanted);
  EXPECT_FALSE((*recorder)->begin(5, shows));  // Whoever asked is gone, with its folder.
  EXPECT_EQ(page->state(), Sample::kNone);
  (void)rehearsal();
  page->set(Sample::kWanted);
  ASSERT_TRUE((*recorder)->begin(5, shows));
  (*recorder)->record("", sum_);
  (*recorder)->end(true);
  EXPECT_EQ(page->state(), Sample::kTooLarge);
  page->set(Sample::kWanted);
  const auto has_no_room = [](const std::string&) -> Status {
    return Error{Blame::kWorld, "no room"};
  };
  EXPECT_FALSE((*recorder)->begin(6, has_no_room));
  EXPECT_EQ(page->state(), Sample::kNone);
}

TEST_F(RecordingTest, APageOfAnotherReleaseIsRefused) {
  EXPECT_FALSE(SamplePage::of(folder_, 1));
  std::ofstream(cat(folder_, "/sample-1")) << std::string(4096, 'x');
  EXPECT_FALSE(SamplePage::of(folder_, 1));
}

}  // namespace
}  // namespace holdfast::runtime
