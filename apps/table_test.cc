// `holdfast table`: lists, exports and imports saved tables, and names what it refuses.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "os/files.h"
#include "os/spawn.h"
#include "os/testing.h"
#include "table/saved.h"
#include "table/tables.h"

namespace holdfast::apps {
namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

class TableCommand : public testing::Test {
 protected:
  // Two tables after one step, of which the first has three rows and the second none.
  void SetUp() override {
    const std::vector<table::Spec> specs{
        {.name = "users", .values = 2, .optimizer = {.rule = table::Optimizer::Rule::kAdam}},
        {.name = "odd\x1b[31mname", .values = 3, .type = table::Type::kBfloat16}};
    auto tables = table::Tables::open(folder / "table", specs, 5);
    ASSERT_TRUE(tables) << tables.error().what;
    tables->begin(6, {});
    ASSERT_TRUE(tables->add(0, std::vector<std::uint64_t>{9, 2, 700},
                            std::vector<float>{1, 2, 3, 4, 5, 6}));
    ASSERT_TRUE(tables->stage(7, {}, std::vector<table::Arguments>(2, {.learning_rate = 0.5})));
    tables->update(1);
    const table::Saved about{specs, 5, 7, 1};
    ASSERT_TRUE(table::save(*tables, saved, about, 0));
    ASSERT_TRUE(table::save_manifest(saved, about));
  }

  // Runs `holdfast table`; returns the exit code. What it prints is in `said`.
  int run(const std::vector<std::string>& words) {
    os::SpawnOptions options;
    options.argv = {HOLDFAST, "table"};
    options.argv.insert(options.argv.end(), words.begin(), words.end());
    options.output = folder / "output";
    std::filesystem::remove(options.output);
    const auto child = os::spawn(options);
    EXPECT_TRUE(child) << child.error().what;
    const auto exit = os::wait_for(child->pidfd.get());
    said = *os::read_file(options.output);
    return exit->shell_code();
  }

  os::TemporaryFolder folder{"/dev/shm"};
  const std::string saved = folder / "saved";
  const std::string file = folder / "rows.safetensors";
  const std::string first = saved + "/table-0.0-of-1.step-7.run-5.safetensors";
  std::string said;
};

TEST_F(TableCommand, ListsWhatIsThere) {
  ASSERT_EQ(run({"ls", saved}), 0) << said;
  EXPECT_TRUE(has(said, cat(saved, ": step 7, saved by 1 server\n"))) << said;
  EXPECT_TRUE(has(said, "float32   Adam                         3")) << said;
  EXPECT_TRUE(has(said, "bfloat16  SGD                          0")) << said;
  EXPECT_TRUE(has(said, "odd?[31mname\n")) << said;
  EXPECT_FALSE(has(said, "digests")) << said;
  ASSERT_EQ(run({"ls", "--verify", saved}), 0) << said;
  EXPECT_TRUE(has(said, "All rows were read, and their digests are right.\n")) << said;
  ASSERT_EQ(run({"ls", saved, "--json"}), 0) << said;
  const auto json = nlohmann::json::parse(said);
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["servers"], 1);
  const auto& users = json["tables"][0];
  EXPECT_EQ(users["name"], "users");
  EXPECT_EQ(users["values"], 2);
  EXPECT_EQ(users["dtype"], "float32");
  EXPECT_EQ(users["optimizer"], "Adam");
  EXPECT_EQ(users["rows"], 3);
  EXPECT_EQ(users["bytes"], std::filesystem::file_size(first));
  EXPECT_EQ(users["updates"], 1);
  EXPECT_EQ(users["files"], std::vector<std::string>{"table-0.0-of-1.step-7.run-5.safetensors"});
  EXPECT_TRUE(users["problems"].empty());
}

TEST_F(TableCommand, NamesWhatIsDamaged) {
  {
    std::fstream damaged(first, std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(-2, std::ios::end);
    damaged.put('!');
  }
  const std::string why =
      cat("holdfast table: ", first, " is no file of saved tables that can be used: ");
  EXPECT_EQ(run({"ls", saved}), 0) << said;
  EXPECT_EQ(run({"ls", saved, "--verify"}), 1);
  EXPECT_TRUE(has(said, why + "its rows are damaged\n")) << said;
  EXPECT_TRUE(has(said, "users  (damaged)\n")) << said;
  EXPECT_FALSE(has(said, "are right")) << said;
  EXPECT_EQ(run({"export", saved, file, "--table", "users"}), 1);
  EXPECT_TRUE(has(said, why + "its rows are damaged\n")) << said;
  EXPECT_FALSE(std::filesystem::exists(file));
  std::filesystem::resize_file(first, std::filesystem::file_size(first) - 1);
  EXPECT_EQ(run({"ls", saved}), 1);
  EXPECT_TRUE(has(said, why + "its header does not fit its size\n")) << said;
  std::filesystem::remove(first);
  EXPECT_EQ(run({"ls", saved, "--json"}), 1);
  EXPECT_TRUE(has(said, cat("holdfast table: cannot open ", first, ": No such file"))) << said;
  EXPECT_EQ(run({"ls", folder.path()}), 1);
  EXPECT_TRUE(has(said, cat("there are no saved tables in ", folder.path()))) << said;
}

TEST_F(TableCommand, ExportsAndImports) {
  EXPECT_EQ(run({"export", saved, file}), 1);
  EXPECT_TRUE(has(said, cat("the save in ", saved,
                            " has 2 tables: users, odd?[31mname. Say which "
                            "(--table NAME)\n")))
      << said;
  EXPECT_EQ(run({"export", saved, file, "--table", "users"}), 0);
  EXPECT_EQ(said, cat(file,
                      " has 3 rows of table users: `keys`, `rows` of 2 values, `state` of "
                      "Adam\n"));
  EXPECT_EQ(run({"export", saved, file, "--table", "users"}), 1);
  EXPECT_EQ(said, cat("holdfast table: ", file, " is there already; --force replaces it\n"));
  EXPECT_EQ(run({"export", saved, file, "--table", "users", "--force"}), 0) << said;
  EXPECT_EQ(run({"import", file, saved, "--table", "users"}), 0);
  EXPECT_EQ(said, cat("Table users in ", saved, " has 3 rows of ", file,
                      ", the greatest key 700. Its optimizer goes on after 1 update.\n"));
  EXPECT_FALSE(std::filesystem::exists(first));
  EXPECT_EQ(run({"import", file, saved, "--table", "odd\x1b[31mname"}), 1);
  EXPECT_TRUE(has(said, "odd?[31mname expects [3, 3]\n")) << said;
  EXPECT_EQ(run({"ls", saved, "--verify"}), 0) << said;
}

TEST_F(TableCommand, SaysThatAnOptimizerBeginsAnew) {
  const std::string header = R"({"keys":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                             R"("rows":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]}})";
  std::ofstream(file, std::ios::binary) << static_cast<char>(header.size()) << std::string(7, '\0')
                                        << header << std::string(16, '\0');
  ASSERT_LT(header.size(), 128U);
  EXPECT_EQ(run({"import", file, saved, "--table", "users"}), 0) << said;
  EXPECT_TRUE(has(said, "has 1 row of ")) << said;
  EXPECT_TRUE(has(said,
                  "the greatest key 0. Its optimizer begins anew: the first state in each "
                  "row, 0 updates.\n"))
      << said;
}

TEST_F(TableCommand, SaysHowItIsCalled) {
  EXPECT_EQ(run({}), 2);
  EXPECT_TRUE(has(said,
                  "holdfast table: say what to do: ls DIR, export DIR FILE or import FILE "
                  "DIR (--help)\n"))
      << said;
  EXPECT_EQ(run({"look", saved}), 2);
  EXPECT_EQ(run({"ls"}), 2);
  EXPECT_TRUE(has(said, "DIR is required")) << said;
  EXPECT_EQ(run({"import", file, saved}), 2);
  EXPECT_TRUE(has(said, "--table is required")) << said;
  EXPECT_EQ(run({"--help"}), 0);
  for (const char* word : {"ls", "export", "import"}) EXPECT_TRUE(has(said, word)) << said;
}

}  // namespace
}  // namespace holdfast::apps
