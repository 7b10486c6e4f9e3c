// A folder of saved tables is listed, and a table written to one file in the order of its keys.
#include "table/exporting.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/text.h"
#include "os/files.h"
#include "table/listing.h"
#include "table/saved_testing.h"

namespace holdfast::table {
namespace {

using testing::damage;
using testing::Directory;
using testing::header_in;
using testing::kGreatestOfPython;
using testing::replace_in;
using testing::Servers;

class ExportedTables : public ::testing::Test {
 protected:
  void SetUp() override {
    all.greatest_key = kGreatestOfPython;
    all.begin();
    all.make_steps(1, 3);
    all.save(saved);
  }
  [[nodiscard]] std::string file_of(int table, int server) const {
    return cat(saved, "/table-", table, ".", server, "-of-3.step-3.run-5.safetensors");
  }
  [[nodiscard]] std::string refusal(const std::string& name, const std::string& file,
                                    bool replaces = false) const {
    const auto exported = export_table(saved, name, file, replaces);
    return exported ? "" : exported.error().what;
  }
  // What is wrong with table 0.
  [[nodiscard]] std::string problem(bool verifies) const {
    const auto listing = list(saved, verifies);
    EXPECT_TRUE(listing);
    for (std::size_t t = 1; t < 4; ++t) EXPECT_TRUE(listing->tables[t].problems.empty());
    return listing->tables[0].problems.empty() ? "" : listing->tables[0].problems.front();
  }

  const Directory folder;
  const std::string saved = folder.file("saved");
  const std::string to = folder.file("rows.safetensors");
  Servers all{folder, "all", 3};
};

TEST_F(ExportedTables, AreListed) {
  for (const bool verifies : {false, true}) {
    const auto listing = list(saved, verifies);
    ASSERT_TRUE(listing) << listing.error().what;
    EXPECT_EQ(listing->saved.step, 3U);
    EXPECT_EQ(listing->saved.servers, 3U);
    for (std::size_t t = 0; t < 4; ++t) {
      const Listed& listed = listing->tables[t];
      EXPECT_TRUE(listed.problems.empty()) << listed.problems.front();
      std::uint64_t rows = 0, bytes = 0;
      for (std::size_t s = 0; s < 3; ++s) {
        rows += all.all[s].rows(t);
        bytes += std::filesystem::file_size(file_of(static_cast<int>(t), static_cast<int>(s)));
      }
      EXPECT_EQ(listed.rows, rows);
      EXPECT_EQ(listed.bytes, bytes);
      EXPECT_EQ(listed.updates, t == 3 ? all.all[0].updates(3) : 3U);
    }
  }
}

// Every row of every server's file, read as the format's description has it.
std::map<std::uint64_t, std::string> rows_in(const std::vector<std::string>& files,
                                             std::vector<std::uint64_t>* order = nullptr) {
  std::map<std::uint64_t, std::string> rows;
  for (const std::string& file : files) {
    std::string data;
    const auto header = header_in(file, data);
    const std::size_t count = header["keys"]["shape"][0];
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t key = 0;
      std::string row;
      for (const char* name : {"keys", "rows", "state"}) {
        if (!header.contains(name)) continue;
        const std::size_t begin = header[name]["data_offsets"][0];
        const std::size_t bytes =
            (header[name]["data_offsets"][1].get<std::size_t>() - begin) / count;
        if (name == std::string("keys")) {
          std::memcpy(&key, data.data() + begin + i * bytes, bytes);
        } else {
          row += data.substr(begin + i * bytes, bytes);
        }
      }
      if (order != nullptr) order->push_back(key);
      EXPECT_TRUE(rows.emplace(key, row).second);
    }
  }
  return rows;
}

TEST_F(ExportedTables, HaveAllRowsInTheOrderOfTheirKeys) {
  for (int t = 0; t < 3; ++t) {
    const std::string name = all.all[0].specs()[static_cast<std::size_t>(t)].name;
    EXPECT_EQ(refusal(name, to, t > 0), "");
    std::vector<std::uint64_t> order;
    EXPECT_EQ(rows_in({to}, &order), rows_in({file_of(t, 0), file_of(t, 1), file_of(t, 2)}));
    EXPECT_GT(order.size(), 1000U);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    std::string data;
    const auto header = header_in(to, data);
    EXPECT_EQ(header["__metadata__"]["table"], name);
    EXPECT_EQ(header["__metadata__"]["updates"], "3");
    EXPECT_EQ(header["__metadata__"]["step"], "3");
    EXPECT_EQ(header["rows"]["dtype"], t == 1 ? "BF16" : "F32");
    EXPECT_EQ(header.contains("state"), t != 2);
  }
  EXPECT_EQ(refusal("never touched", to, true), "");
  EXPECT_TRUE(rows_in({to}).empty());
}

TEST_F(ExportedTables, ReplaceNothingUnasked) {
  const auto names = os::names_in(folder.path());
  std::ofstream(to) << "of the user";
  EXPECT_EQ(refusal("plain", to), cat(to, " is there already; --force replaces it"));
  EXPECT_EQ(*os::read_file(to), "of the user");
  const std::string own = file_of(0, 1);
  EXPECT_NE(refusal("plain", own, true).find("is in the folder of the save"), std::string::npos);
  EXPECT_NE(refusal("plain", saved + "/tables.json", true).find("is in the folder of the save"),
            std::string::npos);
  EXPECT_NE(refusal("plain", saved, true).find("is no plain file"), std::string::npos);
  EXPECT_NE(refusal("plain", folder.file("none/rows"), true).find("cannot write"),
            std::string::npos);
  EXPECT_EQ(problem(true), "");
  // Damage is found at the end: the file that was there is whole until then.
  damage(file_of(2, 1));
  EXPECT_NE(refusal("plain", to, true).find("its rows are damaged"), std::string::npos);
  EXPECT_EQ(*os::read_file(to), "of the user");
  std::filesystem::remove(to);
  EXPECT_NE(refusal("plain", to).find("its rows are damaged"), std::string::npos);
  EXPECT_EQ(os::names_in(folder.path()), names) << "nothing is left";
}

TEST_F(ExportedTables, NameWhatIsMeant) {
  EXPECT_EQ(refusal("", to), cat("the save in ", saved,
                                 " has 4 tables: odd/name, half, plain, never touched. Say which "
                                 "(--table NAME)"));
  EXPECT_EQ(refusal("odd", to), cat("the save in ", saved,
                                    " has no table odd; it has odd/name, half, plain, never "
                                    "touched"));
  const auto none = export_table(folder.file("none"), "", to, false);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().what.find("there are no saved tables in"), std::string::npos);
}

TEST_F(ExportedTables, NameWhatIsDamaged) {
  const std::string file = file_of(0, 1);
  const auto both = [&](const std::string& what) {
    EXPECT_NE(problem(true).find(what), std::string::npos) << problem(true);
    EXPECT_NE(refusal("odd/name", to).find(what), std::string::npos) << refusal("odd/name", to);
  };
  damage(file);
  EXPECT_EQ(problem(false), "");
  both(cat(file, " is no file of saved tables that can be used: its rows are damaged"));
  std::filesystem::copy_file(file_of(0, 2), file,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(problem(false), "");
  both("twice");
  replace_in(file, "\"step\":\"3\"", "\"step\":\"4\"");
  both(cat(file, " is no file of saved tables that can be used: it is of another save"));
  std::filesystem::copy_file(file_of(1, 2), file,
                             std::filesystem::copy_options::overwrite_existing);
  both("it is of another table: table half is half there and odd/name here");
  std::filesystem::remove(file);
  both(cat("cannot open ", file));
  std::filesystem::remove(saved + "/tables.json");
  EXPECT_FALSE(list(saved, false));
}

TEST(ExportedTable, RefusesKeysThatNoTensorCanHold) {
  const Directory folder;
  Servers all(folder, "all", 1);
  all.begin();
  all.make_steps(1, 1);
  all.save(folder.file("saved"));
  const auto exported = export_table(folder.file("saved"), "plain", folder.file("rows"), false);
  ASSERT_FALSE(exported);
  EXPECT_NE(exported.error().what.find("no tensor of 64-bit integers can hold"), std::string::npos);
}

TEST(ExportedTable, IsTheOnlyOne) {
  const Directory folder;
  auto tables = Tables::open(folder.file("one"), {{.name = "one", .values = 3}}, 5);
  ASSERT_TRUE(tables);
  tables->begin(0, {});
  const Saved saved{tables->specs(), 5, 0, 1};
  ASSERT_TRUE(save(*tables, folder.file("saved"), saved, 0));
  ASSERT_TRUE(save_manifest(folder.file("saved"), saved));
  EXPECT_TRUE(export_table(folder.file("saved"), "", folder.file("rows"), false));
}

}  // namespace
}  // namespace holdfast::table
