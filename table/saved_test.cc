// Saved tables: whoever loads them goes on with the same bits, with any number of servers.
#include "table/saved.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "os/files.h"
#include "table/saved_testing.h"

namespace holdfast::table {
namespace {

using testing::damage;
using testing::Directory;
using testing::header_in;
using testing::replace_in;
using testing::saved_specs;
using testing::Servers;

TEST(SavedTables, AnyNumberOfServersGoesOnWithTheSameBits) {
  const Directory folder;
  Servers all(folder, "all", 2);
  all.begin();
  all.make_steps(1, 4);
  all.save(folder.file("saved"));
  all.make_steps(5, 8);
  for (const std::size_t count : {1UL, 2UL, 3UL}) {
    Servers later(folder, cat("later", count, "-"), count);
    const Status loaded = later.load(folder.file("saved"));
    ASSERT_TRUE(loaded) << loaded.error().what;
    EXPECT_EQ(later.all[0].version(), 0U);
    EXPECT_EQ(later.all[0].updates(0), 4U);
    later.make_steps(5, 8);
    EXPECT_EQ(later.digest(), all.digest()) << count;
  }
}

TEST(SavedTables, AreSafetensors) {
  const Directory folder;
  Servers all(folder, "all", 1);
  all.begin();
  all.make_steps(1, 2);
  all.save(folder.file("saved"));
  std::string data;
  const auto header = header_in(folder.file("saved/table-0.0-of-1.step-2.run-5.safetensors"), data);
  const std::uint64_t rows = all.all[0].rows(0);
  EXPECT_EQ(header["__metadata__"]["table"], "odd/name");
  EXPECT_EQ(header["keys"]["dtype"], "I64");
  EXPECT_EQ(header["rows"]["shape"], (std::vector<std::uint64_t>{rows, 7}));
  EXPECT_EQ(header["state"]["shape"], (std::vector<std::uint64_t>{rows, 14}));
  std::vector<std::uint64_t> keys(rows);
  std::memcpy(keys.data(), data.data() + header["keys"]["data_offsets"][0].get<std::size_t>(),
              rows * sizeof keys[0]);
  std::vector<float> expected(rows * 7);
  all.all[0].read(0, keys, expected);
  EXPECT_EQ(std::memcmp(data.data() + header["rows"]["data_offsets"][0].get<std::size_t>(),
                        expected.data(), expected.size() * sizeof(float)),
            0);
  EXPECT_EQ(data.size(), header["state"]["data_offsets"][1].get<std::size_t>());
}

TEST(SavedTables, TheNextSaveTakesTheirPlace) {
  const Directory folder;
  const std::string saved = folder.file("saved");
  Servers all(folder, "all", 1);
  all.begin();
  all.save(saved);
  all.make_steps(1, 1);
  std::ofstream(saved + "/table-notes.safetensors") << "of the user";
  std::ofstream(saved + "/table-9.0-of-1.step-0.run-5.safetensors.new")
      << "of a save that was killed";
  all.save(saved);
  EXPECT_EQ(os::names_in(saved).size(), 4U + 2U);  // The manifest, and the user's file.
  const auto manifest = read_manifest(saved);
  ASSERT_TRUE(manifest);
  EXPECT_EQ(manifest->step, 1U);
}

// A job that was killed while it saved, at a step that an older one has saved, too.
TEST(SavedTables, AnotherRunsSaveStaysWholeUntilTheNextOneIs) {
  const Directory folder;
  const std::string saved = folder.file("saved");
  Servers first(folder, "first", 1);
  first.begin();
  first.make_steps(1, 2);
  first.save(saved);
  Servers second(folder, "second", 1);
  second.begin();
  second.make_steps(2, 3);
  const Saved half{second.all[0].specs(), 6, 2, 1};
  ASSERT_TRUE(table::save(second.all[0], saved, half, 0));
  Servers later(folder, "later", 1);
  ASSERT_TRUE(later.load(saved));
  EXPECT_EQ(later.digest(), first.digest());
  forget(saved, half, 0);
  EXPECT_EQ(os::names_in(saved).size(), 5U);
  forget(saved, {first.all[0].specs(), 5, 2, 1}, 0);
  EXPECT_EQ(os::names_in(saved).size(), 5U) << "the manifest names them";
}

TEST(SavedTables, NameWhatIsWrong) {
  const Directory folder;
  const std::string saved = folder.file("saved");
  const std::string file = saved + "/table-0.0-of-2.step-1.run-5.safetensors";
  int tried = 0;
  const auto refusal = [&](const std::vector<Spec>& specs = saved_specs()) {
    Servers later(folder, cat("later", tried++), 1, specs);
    const Status loaded = later.load(saved);
    EXPECT_TRUE(loaded || later.all[0].fresh());
    return loaded ? std::string() : loaded.error().what;
  };
  const auto save_anew = [&] {
    Servers all(folder, cat("all", tried++), 2);
    all.begin();
    all.make_steps(1, 1);
    all.save(saved);
  };
  EXPECT_NE(refusal().find("there are no saved tables in"), std::string::npos);
  save_anew();
  EXPECT_EQ(refusal(), "");
  auto others = saved_specs();
  others[0].values = 8;
  EXPECT_NE(refusal(others).find("table odd/name has 7 values in a row there and 8 here"),
            std::string::npos)
      << refusal(others);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_NE(refusal().find("its header does not fit its size"), std::string::npos);
  save_anew();
  replace_in(file, "\"updates\":\"1\"", "\"updates\":\"2\"");
  EXPECT_NE(refusal().find("of another save than"), std::string::npos) << refusal();
  save_anew();
  replace_in(file, "\"run\":\"5\"", "\"run\":\"6\"");
  EXPECT_NE(refusal().find("of another save than"), std::string::npos) << refusal();
  save_anew();
  damage(file);
  EXPECT_NE(refusal().find("its rows are damaged"), std::string::npos) << refusal();
  save_anew();
  std::filesystem::copy_file(file, saved + "/table-0.1-of-2.step-1.run-5.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_NE(refusal().find("twice"), std::string::npos) << refusal();
  std::filesystem::remove(file);
  EXPECT_NE(refusal().find("cannot open"), std::string::npos);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_NE(refusal().find("it is no file"), std::string::npos);
  std::filesystem::remove(file);
  std::ofstream(file) << "not such a file";
  EXPECT_NE(refusal().find("does not begin as a safetensors file"), std::string::npos);
  replace_in(saved + "/tables.json", "\"servers\": 2", "\"servers\": 0");
  EXPECT_NE(refusal().find("damaged, or of another release"), std::string::npos);
  for (const std::string name : {"../rows.safetensors", "tables.json", "table-0.0"}) {
    save_anew();
    replace_in(saved + "/tables.json", "table-0.0-of-2.step-1.run-5.safetensors", name);
    EXPECT_NE(refusal().find("damaged, or of another release"), std::string::npos) << name;
  }
  std::ofstream(saved + "/tables.json") << "{\"format\": 1}";
  EXPECT_NE(refusal().find("damaged, or of another release"), std::string::npos);
}

}  // namespace
}  // namespace holdfast::table
