#include "io/journal.h"

#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <map>
#include <string>

#include "base/digest.h"
#include "base/text.h"
#include "io/testing.h"
#include "os/fd.h"
#include "os/files.h"

namespace holdfast::io {
namespace {

// A record of many bytes that is whole only if all of it comes from one store().
wire::Formation numbered(std::uint64_t number) {
  wire::Formation record;
  record.job = "job";
  record.generation = number;
  record.roster.resize(50 + number % 200);
  for (auto& seat : record.roster)
    seat = {.node_id = "node", .incarnation = number, .version = number};
  return record;
}

wire::Changes formation(std::uint64_t generation) {
  return {.formation = numbered(generation)};
}

void run_sql(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
      << sqlite3_errmsg(db);
  sqlite3_close(db);
}

std::string error_of(const std::string& path, const std::string& job) {
  const auto journal = Journal::open(path, job);
  return journal ? "" : journal.error().what;
}

TEST(Journal, GivesBackTheNewestRecord) {
  const TemporaryFolder folder;
  {
    auto journal = Journal::open(folder / "j", "job");
    ASSERT_TRUE(journal) << journal.error().what;
    const auto nothing = (*journal)->load();
    ASSERT_TRUE(nothing);
    EXPECT_FALSE(nothing->formation.has_value());
    ASSERT_TRUE((*journal)->store(formation(1)));
    ASSERT_TRUE((*journal)->store(formation(2)));
    EXPECT_EQ(*(*journal)->load()->formation, numbered(2));
  }
  auto again = Journal::open(folder / "j", "job");
  ASSERT_TRUE(again) << again.error().what;
  EXPECT_EQ(*(*again)->load()->formation, numbered(2));
}

std::map<std::string, std::string> kept_in(Journal& journal) {
  const auto memory = journal.load();
  EXPECT_TRUE(memory) << memory.error().what;
  std::map<std::string, std::string> all;
  if (memory) {
    for (const auto& pair : memory->kept) all[pair.key] = cat(pair.version, ' ', pair.value);
  }
  return all;
}

wire::Remarked remark(std::int64_t unix_ms) {
  return {unix_ms, {.kind = wire::Reason::Kind::kReplicas, .detail = cat("said at ", unix_ms)}};
}

TEST(Journal, KeepsAllBesideTheRecordUntilAnotherRun) {
  const TemporaryFolder folder;
  const std::string big(std::size_t{1} << 20U, '\0');
  {
    auto journal = Journal::open(folder / "j", "job");
    ASSERT_TRUE(journal) << journal.error().what;
    ASSERT_TRUE((*journal)->store(formation(1)));
    ASSERT_TRUE((*journal)->store({.kept = {{"a", "1"}, {"", ""}}}));
    ASSERT_TRUE((*journal)->store({.formation = numbered(2), .kept = {{"b", big}, {"a", "2", 2}}}));
    ASSERT_TRUE((*journal)->store({.writers = {{~std::uint64_t{0}, 1, 2}, {5, 1, 2}}}));
    ASSERT_TRUE((*journal)->store({.writers = {{5, 2, 3}}}));
    ASSERT_TRUE((*journal)->store({.remarks = {{1, remark(1)}}}));
    ASSERT_TRUE((*journal)->store({.remarks = {{2, remark(2)}, {3, remark(3)}}}));
  }
  auto again = Journal::open(folder / "j", "job");
  ASSERT_TRUE(again) << again.error().what;
  EXPECT_EQ(*(*again)->load()->formation, numbered(2)) << "all of a store, or nothing";
  EXPECT_EQ(kept_in(**again),
            (std::map<std::string, std::string>{{"", "1 "}, {"a", "2 2"}, {"b", "1 " + big}}));
  EXPECT_EQ((*again)->load()->writers,
            (std::vector<wire::Writer>{{~std::uint64_t{0}, 1, 2}, {5, 2, 3}}));
  EXPECT_EQ((*again)->load()->remarks,
            (std::vector<wire::Remarked>{remark(1), remark(2), remark(3)}));
  ASSERT_TRUE((*again)->begin(numbered(4)));
  EXPECT_TRUE((*again)->load()->remarks.empty());
  EXPECT_EQ(*(*again)->load()->formation, numbered(4));
  EXPECT_TRUE(kept_in(**again).empty());
}

wire::Formation with_roster(Generation generation, const std::vector<std::string>& nodes) {
  wire::Formation formation{.job = "job", .generation = generation};
  for (const auto& node : nodes) formation.roster.push_back({.node_id = node});
  return formation;
}

TEST(Journal, WritesTheSeatsThatHaveChanged) {
  const TemporaryFolder folder;
  auto journal = Journal::open(folder / "j", "job");
  ASSERT_TRUE(journal && (*journal)->store({.formation = with_roster(1, {"a", "b", "c"})}));
  EXPECT_EQ(*(*journal)->load()->formation, with_roster(1, {"a", "b", "c"}));
  ASSERT_TRUE(
      (*journal)->store({.formation = with_roster(2, {}), .seats = {{1, {.node_id = "B"}}}}));
  EXPECT_EQ(*(*journal)->load()->formation, with_roster(2, {"a", "B", "c"}));
  ASSERT_TRUE((*journal)->store({.formation = with_roster(3, {"x"})}));
  EXPECT_EQ(*(*journal)->load()->formation, with_roster(3, {"x"}));
  ASSERT_TRUE((*journal)->begin(with_roster(4, {})));
  EXPECT_EQ(*(*journal)->load()->formation, with_roster(4, {}));
}

TEST(Journal, TellsWhatIsDamaged) {
  for (const char* sql :
       {"UPDATE kept SET value = x'32'", "UPDATE kept SET version = 2",
        "UPDATE seats SET record = x'7a00' WHERE rank = 0", "DELETE FROM seats WHERE rank = 0",
        "UPDATE remarks SET record = x'' WHERE number = 1", "DELETE FROM remarks WHERE number = 1",
        "UPDATE remarks SET number = 3 WHERE number = 2",
        "UPDATE journal SET record = x'7a00'"}) {  // A valid record, but not what was stored.
    const TemporaryFolder folder;
    {
      auto journal = Journal::open(folder / "j", "job");
      ASSERT_TRUE(journal && (*journal)->store({.formation = with_roster(1, {"a", "b"}),
                                                .kept = {{"a", "1"}},
                                                .remarks = {{1, remark(1)}, {2, remark(2)}}}));
      ASSERT_TRUE((*journal)->load());
    }
    run_sql(folder / "j", sql);
    auto journal = Journal::open(folder / "j", "job");
    ASSERT_TRUE(journal);
    const auto memory = (*journal)->load();
    ASSERT_FALSE(memory) << sql;
    EXPECT_NE(memory.error().what.find("damaged"), std::string::npos) << memory.error().what;
  }
}

TEST(Journal, BelievesNoMoreRemarksThanAJobCanHave) {
  const TemporaryFolder folder;
  auto journal = Journal::open(folder / "j", "job");
  ASSERT_TRUE(journal);
  wire::Changes all;
  for (std::uint64_t number = 1; number <= wire::kMaxRemarks; ++number) {
    all.remarks[number] = remark(1);
  }
  ASSERT_TRUE((*journal)->store(all));
  EXPECT_EQ((*journal)->load()->remarks.size(), wire::kMaxRemarks);
  ASSERT_TRUE((*journal)->store({.remarks = {{wire::kMaxRemarks + 1, remark(1)}}}));
  EXPECT_FALSE((*journal)->load());
}

TEST(Journal, TellsWhatAnotherVersionHasWritten) {
  for (const bool seat : {false, true}) {
    const TemporaryFolder folder;
    auto journal = Journal::open(folder / "j", "job");
    auto later = with_roster(1, {"a", "b"});
    if (!seat) later.stage = static_cast<wire::Stage>(250);
    ASSERT_TRUE(journal && (*journal)->store({.formation = later}));
    if (seat) {
      // A seat whose name is a number, which can not be decoded.
      const std::byte record[] = {std::byte{8}};
      const auto seal = static_cast<std::int64_t>(digest(record));
      journal->reset();
      run_sql(folder / "j", cat("UPDATE seats SET record=x'08', digest=", seal));
      journal = Journal::open(folder / "j", "job");
      ASSERT_TRUE(journal);
    }
    const auto memory = (*journal)->load();
    ASSERT_FALSE(memory);
    EXPECT_NE(memory.error().what.find("can not be read by this version of Holdfast; go on with"),
              std::string::npos)
        << memory.error().what;
  }
}

TEST(Journal, GivesBackTheNamesOfManyDrainedAgents) {
  const TemporaryFolder folder;
  auto journal = Journal::open(folder / "j", "job");
  auto many = with_roster(1, {"a", "b"});
  for (int i = 0; i < 1000; ++i) many.drained.push_back(cat("agent-", i));
  ASSERT_TRUE(journal && (*journal)->store({.formation = many}));
  const auto memory = (*journal)->load();
  ASSERT_TRUE(memory) << memory.error().what;
  EXPECT_EQ(*memory->formation, many);
}

TEST(Journal, IsForItsOwnerAlone) {
  const TemporaryFolder folder;
  auto journal = Journal::open(folder / "j", "job");
  ASSERT_TRUE(journal);
  ASSERT_TRUE((*journal)->store(formation(1)));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    struct stat about {};
    ASSERT_EQ(::stat(entry.path().c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777U, 0600U) << entry.path();
  }
}

TEST(Journal, RefusesAnotherJobByName) {
  const TemporaryFolder folder;
  ASSERT_TRUE(Journal::open(folder / "j", "mine"));
  const std::string error = error_of(folder / "j", "yours");
  EXPECT_NE(error.find("'mine'"), std::string::npos) << error;
  EXPECT_NE(error.find("'yours'"), std::string::npos) << error;
  EXPECT_NE(error.find(folder / "j"), std::string::npos) << error;
  EXPECT_EQ(error_of(folder / "j", "mine"), "");
}

TEST(Journal, RefusesAFileThatIsNoDatabaseAndLeavesItAlone) {
  const TemporaryFolder folder;
  const std::string letter(5000, 'x');
  std::ofstream(folder / "letter") << letter;
  const std::string error = error_of(folder / "letter", "job");
  EXPECT_NE(error.find(folder / "letter"), std::string::npos) << error;
  EXPECT_NE(error.find("move this one away"), std::string::npos) << error;
  EXPECT_EQ(*os::read_file(folder / "letter"), letter);
}

TEST(Journal, RefusesADatabaseOfAnotherProgramAndLeavesItAlone) {
  const TemporaryFolder folder;
  run_sql(folder / "other", "CREATE TABLE songs(name)");
  const auto before = *os::read_file(folder / "other");
  EXPECT_NE(error_of(folder / "other", "job").find("another program"), std::string::npos);
  EXPECT_EQ(*os::read_file(folder / "other"), before);
}

TEST(Journal, RefusesAnotherSchemaByName) {
  const TemporaryFolder folder;
  ASSERT_TRUE(Journal::open(folder / "j", "job"));
  run_sql(folder / "j", "PRAGMA user_version=9");
  EXPECT_NE(error_of(folder / "j", "job").find("newer Holdfast"), std::string::npos);
  run_sql(folder / "j", "PRAGMA user_version=1");
  EXPECT_NE(error_of(folder / "j", "job").find("older Holdfast (schema 1"), std::string::npos);
}

TEST(Journal, NamesAFolderThatIsNotThere) {
  const std::string error = error_of("/nowhere/at/all/journal", "job");
  EXPECT_NE(error.find("/nowhere/at/all/journal"), std::string::npos);
}

TEST(Journal, IsHeldByOneSchedulerAtATime) {
  const TemporaryFolder folder;
  const auto first = Journal::open(folder / "j", "job");
  ASSERT_TRUE(first);
  const std::string error = error_of(folder / "j", "job");
  EXPECT_NE(error.find("held by another process"), std::string::npos) << error;
}

// Stores record after record and says the number of each when store() has returned.
[[noreturn]] void store_for_ever(const std::string& path, int out) {
  auto journal = Journal::open(path, "job");
  if (!journal) ::_exit(1);
  const auto last = (*journal)->load();
  std::uint64_t number = last && last->formation ? last->formation->generation : 0;
  while (true) {
    if (!(*journal)->store(formation(++number))) ::_exit(2);
    if (::write(out, &number, sizeof(number)) != sizeof(number)) ::_exit(3);
  }
}

TEST(Journal, HoldsAWholeRecordHoweverItsSchedulerIsKilled) {
  const TemporaryFolder folder;
  std::uint64_t acknowledged = 0;
  for (int round = 0; round < 25; ++round) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    const os::Fd reading(ends[0]);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) store_for_ever(folder / "j", ends[1]);
    ::close(ends[1]);
    // Killed somewhere in the store after this one, and each round somewhere else.
    const std::uint64_t stop_after = acknowledged + 1 + static_cast<std::uint64_t>(round) * 3;
    while (acknowledged < stop_after &&
           ::read(reading.get(), &acknowledged, sizeof(acknowledged)) == sizeof(acknowledged)) {
    }
    ::kill(child, SIGKILL);
    while (::read(reading.get(), &acknowledged, sizeof(acknowledged)) == sizeof(acknowledged)) {
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed by itself: " << status;
    auto journal = Journal::open(folder / "j", "job");
    ASSERT_TRUE(journal) << journal.error().what;
    const auto record = (*journal)->load();
    ASSERT_TRUE(record) << record.error().what;
    const std::uint64_t number = record->formation->generation;
    EXPECT_EQ(*record->formation, numbered(number));
    EXPECT_GE(number, acknowledged);
    EXPECT_LE(number, acknowledged + 1);
  }
}

}  // namespace
}  // namespace holdfast::io
