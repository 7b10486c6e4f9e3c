// The rows of a file take the place of a saved table's, whole or not at all.
#include "table/importing.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/text.h"
#include "os/files.h"
#include "table/exporting.h"
#include "table/listing.h"
#include "table/saved_testing.h"

namespace holdfast::table {
namespace {

using testing::damage;
using testing::Directory;
using testing::kGreatestOfPython;
using testing::saved_specs;
using testing::Servers;

// A safetensors file as a person's program would write it.
struct Tensor {
  std::string type;
  std::vector<std::uint64_t> shape;
  std::string bytes;
};
template <class T>
std::string bytes_of(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}
struct Tensors {
  std::map<std::string, Tensor> all;
  nlohmann::json metadata;

  // The last name first: any order is good.
  void write(const std::string& path) const {
    nlohmann::json header;
    if (!metadata.is_null()) header["__metadata__"] = metadata;
    std::string data;
    for (auto one = all.rbegin(); one != all.rend(); ++one) {
      const auto& [name, tensor] = *one;
      header[name] = {{"dtype", tensor.type},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    const std::string text = header.dump();
    std::ofstream(path, std::ios::binary)
        << bytes_of(std::vector<std::uint64_t>{text.size()}) << text << data;
  }
};
Tensors tensors(const std::vector<std::int64_t>& keys, const std::vector<float>& rows) {
  return {.all = {{"keys", {"I64", {keys.size()}, bytes_of(keys)}},
                  {"rows", {"F32", {keys.size(), rows.size() / keys.size()}, bytes_of(rows)}}},
          .metadata = {}};
}
std::vector<float> numbers(std::size_t count) {
  std::vector<float> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(static_cast<float>(i) + 0.5F);
  return all;
}

class ImportedTables : public ::testing::Test {
 protected:
  void SetUp() override {
    all.greatest_key = kGreatestOfPython;
    all.begin();
    all.make_steps(1, 4);
    all.save(saved);
  }
  [[nodiscard]] std::string refusal(const Tensors& given,
                                    const std::string& name = "odd/name") const {
    given.write(file);
    const auto imported = import_table(file, saved, name);
    return imported ? "" : imported.error().what;
  }
  [[nodiscard]] std::vector<float> read(const Servers& servers, std::size_t t,
                                        std::uint64_t key) const {
    std::vector<float> row(servers.all[0].specs()[t].values);
    for (std::size_t s = 0; s < servers.all.size(); ++s) {
      if (servers.mine(s)(key)) servers.all[s].read(t, std::vector{key}, row);
    }
    return row;
  }

  const Directory folder;
  const std::string saved = folder.file("saved");
  const std::string file = folder.file("rows.safetensors");
  Servers all{folder, "all", 2};
};

TEST_F(ImportedTables, GoOnWithTheSameBits) {
  const std::string fresh = folder.file("fresh");
  Servers first(folder, "first", 2);
  first.begin();
  first.save(fresh);
  for (const char* name : {"odd/name", "half", "plain"}) {
    const auto exported = export_table(saved, name, file, true);
    ASSERT_TRUE(exported) << exported.error().what;
    const auto imported = import_table(file, fresh, name);
    ASSERT_TRUE(imported) << imported.error().what;
    EXPECT_EQ(imported->rows, exported->rows);
    EXPECT_EQ(imported->has_state, name != std::string("plain"));
    EXPECT_EQ(imported->updates, imported->has_state ? 4U : 0U);
  }
  EXPECT_EQ(os::names_in(fresh).size(), 1U + 3U + 2U) << "what was replaced is gone";
  const auto listing = list(fresh, true);
  for (const Listed& listed : listing->tables) EXPECT_TRUE(listed.problems.empty());
  all.make_steps(5, 8);
  for (const std::size_t count : {1UL, 3UL}) {
    Servers later(folder, cat("later", count, "-"), count);
    later.greatest_key = kGreatestOfPython;
    const Status loaded = later.load(fresh);
    ASSERT_TRUE(loaded) << loaded.error().what;
    later.make_steps(5, 8);
    EXPECT_EQ(later.digest(), all.digest()) << count;
  }
}

TEST_F(ImportedTables, BeginAnewWithoutAState) {
  Tensors given = tensors({70, 3}, numbers(14));
  given.metadata = {{"updates", "9"}};
  given.write(file);
  const auto imported = import_table(file, saved, "odd/name");
  ASSERT_TRUE(imported) << imported.error().what;
  EXPECT_EQ(imported->greatest_key, 70U);
  EXPECT_EQ(imported->updates, 0U);
  EXPECT_FALSE(imported->has_state);
  Servers later(folder, "later", 3);
  ASSERT_TRUE(later.load(saved));
  EXPECT_EQ(later.all[0].updates(0), 0U);
  EXPECT_EQ(later.all[0].updates(1), 4U);
  std::vector<std::uint64_t> rows(4);
  for (const Tables& one : later.all) {
    for (std::size_t t = 0; t < 4; ++t) rows[t] += one.rows(t);
  }
  EXPECT_EQ(rows[0], 2U);
  EXPECT_EQ(rows[1], all.all[0].rows(1) + all.all[1].rows(1)) << "other tables stay";
  EXPECT_EQ(read(later, 0, 3), (std::vector<float>{7.5, 8.5, 9.5, 10.5, 11.5, 12.5, 13.5}));
  for (const std::uint64_t key : all.all[0].keys(2))
    EXPECT_EQ(read(later, 2, key), read(all, 2, key));
  // As a row that begins: with the first update's number, and with moments of zeros.
  std::vector<std::byte> row(saved_specs()[0].row_bytes());
  const auto begun = read(later, 0, 70);
  write_values(saved_specs()[0], begun, row.data());
  begin_state(saved_specs()[0], row.data());
  const Arguments arguments{.learning_rate = 0.1, .update_count = 1};
  Update(saved_specs()[0], arguments).apply(row.data(), numbers(7).data());
  std::vector<float> expected(7);
  read_values(saved_specs()[0], row.data(), expected);
  for (std::size_t s = 0; s < 3; ++s) {
    if (!later.mine(s)(70)) continue;
    ASSERT_TRUE(later.all[s].add(0, std::vector<std::uint64_t>{70}, numbers(7)));
    ASSERT_TRUE(later.all[s].stage(1, {}, std::vector<Arguments>(4, arguments)));
    later.all[s].update(1);
    EXPECT_EQ(read(later, 0, 70), expected);
  }
}

TEST_F(ImportedTables, HaveTheTablesOwnType) {
  EXPECT_EQ(refusal(tensors({1}, {1, -2, 1.00390625F, 3.0078125F, 0}), "half"), "");
  Servers later(folder, "later", 1);
  ASSERT_TRUE(later.load(saved));
  EXPECT_EQ(read(later, 1, 1), (std::vector<float>{1, -2, 1, 3, 0})) << "ties go to even";
  Tensors narrow = tensors({1}, {0, 0});
  narrow.all["rows"] = {"BF16", {1, 2}, bytes_of(std::vector<std::uint16_t>{0x3f80, 0xc000})};
  EXPECT_EQ(refusal(narrow, "plain"), "");
  Servers last(folder, "last", 1);
  ASSERT_TRUE(last.load(saved));
  EXPECT_EQ(read(last, 2, 1), (std::vector<float>{1, -2}));
}

TEST_F(ImportedTables, MayHaveNoRows) {
  Tensors none = tensors({1}, numbers(7));
  none.all["keys"] = {"I64", {0}, ""};
  none.all["rows"] = {"F32", {0, 7}, ""};
  EXPECT_EQ(refusal(none), "");
  EXPECT_EQ(list(saved, true)->tables[0].rows, 0U);
}

// Changes of a file that is good, and what they are refused by.
using Cases = std::vector<std::pair<const char*, std::function<void(Tensors&)>>>;
const Cases kWrongRows{{"it has no tensor `keys`", [](Tensors& t) { t.all.erase("keys"); }},
                       {"it has no tensor `rows`", [](Tensors& t) { t.all.erase("rows"); }},
                       {"it has a tensor `weight`; there are `keys`, `rows` and perhaps `state`",
                        [](Tensors& t) { t.all["weight"] = t.all["rows"]; }},
                       {"its tensor `keys` is of type I32, and table odd/name takes I64",
                        [](Tensors& t) { t.all["keys"].type = "I32"; }},
                       {"its tensor `rows` is of type F64, and table odd/name takes F32 or BF16",
                        [](Tensors& t) { t.all["rows"].type = "F64"; }},
                       {"its tensor `rows` has the shape [2,8], and table odd/name expects [2, 7]",
                        [](Tensors& t) {
                          t.all["rows"] = {"F32", {2, 8}, bytes_of(numbers(16))};
                        }},
                       {"its tensor `rows` has the shape [3,7], and table odd/name expects [2, 7]",
                        [](Tensors& t) {
                          t.all["rows"] = {"F32", {3, 7}, bytes_of(numbers(21))};
                        }},
                       {"its tensor `keys` has the shape [2,1], and table odd/name expects [2]",
                        [](Tensors& t) {
                          t.all["keys"].shape = {2, 1};
                        }},
                       {"its tensor `rows` has another size than its shape tells",
                        [](Tensors& t) { t.all["rows"].bytes += '\0'; }},
                       {"it has key 6 twice",
                        [](Tensors& t) {
                          t.all["keys"].bytes = bytes_of<std::int64_t>({6, 6});
                        }},
                       {"it has key -1; keys are from 0 on",
                        [](Tensors& t) {
                          t.all["keys"].bytes = bytes_of<std::int64_t>({-1, 6});
                        }},
                       {"its row of key 6 has a value that is no finite number", [](Tensors& t) {
                          auto rows = numbers(14);
                          rows[13] = NAN;
                          t.all["rows"].bytes = bytes_of(rows);
                        }}};
const Cases kWrongStates{
    {"its `state` is of \"SGD\", and table odd/name has Adam: leave it out",
     [](Tensors& t) { t.metadata["optimizer"] = "SGD"; }},
    {"its tensor `state` has the shape [2,7], and table odd/name expects [2, 14]",
     [](Tensors& t) {
       t.all["state"] = {"F32", {2, 7}, bytes_of(numbers(14))};
     }},
    {"its metadata do not say how many updates have made the `state` of Adam: write it with "
     "metadata={\"updates\": \"1000\"}, or leave `state` out",
     [](Tensors& t) { t.metadata = {}; }},
    {"its metadata do not say", [](Tensors& t) { t.metadata["updates"] = "12 or so"; }},
    {"its metadata do not say", [](Tensors& t) { t.metadata["updates"] = "18446744073709551615"; }},
    {"its row of key 5 has a number in its state that is not finite",
     [](Tensors& t) {
       auto state = numbers(28);
       state[0] = INFINITY;
       t.all["state"].bytes = bytes_of(state);
     }},
    {"its row of key 6 has a sum of squares in its state that is below 0", [](Tensors& t) {
       auto state = numbers(28);
       state[0] = -1;
       state[27] = -1e-9F;
       t.all["state"].bytes = bytes_of(state);
     }}};

TEST_F(ImportedTables, AreNamedIfTheyMakeNoSense) {
  const auto names = os::names_in(saved);
  Cases cases = kWrongRows;
  cases.insert(cases.end(), kWrongStates.begin(), kWrongStates.end());
  for (const auto& [why, change] : cases) {
    Tensors given = tensors({5, 6}, numbers(14));
    given.all["state"] = {"F32", {2, 14}, bytes_of(numbers(28))};
    given.metadata = {{"updates", "3"}};
    change(given);
    const std::string said = refusal(given);
    EXPECT_NE(said.find(cat(file, " can not be imported: ", why)), std::string::npos) << why << "\n"
                                                                                      << said;
  }
  Tensors with_state = tensors({5}, numbers(2));
  with_state.all["state"] = {"F32", {1, 2}, bytes_of(numbers(2))};
  EXPECT_NE(refusal(with_state, "plain").find("the optimizer of table plain, SGD, has none"),
            std::string::npos);
  EXPECT_NE(refusal(tensors({5}, {0, 0, 0, 0, 3.4e38F}), "half")
                .find("has a value that is too great for bfloat16"),
            std::string::npos);
  EXPECT_NE(
      refusal(tensors({5}, numbers(2)), "third").find("has no table third; it has odd/name, "),
      std::string::npos);
  EXPECT_EQ(os::names_in(saved), names) << "nothing is left";
  Servers later(folder, "later", 1);
  ASSERT_TRUE(later.load(saved));
  EXPECT_EQ(later.digest(), all.digest());
}

// What is no safetensors file, or claims to be larger than it is.
TEST_F(ImportedTables, AreRefusedFromFilesOfOtherKinds) {
  const auto said_of = [&](const std::string& text) {
    std::ofstream(file, std::ios::binary) << text;
    const auto imported = import_table(file, saved, "odd/name");
    return imported ? "" : imported.error().what;
  };
  const auto with_length = [](std::uint64_t length, const std::string& header) {
    return bytes_of(std::vector<std::uint64_t>{length}) + header;
  };
  EXPECT_NE(said_of("").find("does not begin as a safetensors file"), std::string::npos);
  EXPECT_NE(said_of(with_length(~std::uint64_t{0}, "{}")).find("does not begin as"),
            std::string::npos);
  EXPECT_NE(said_of(with_length(9, "{}")).find("it is cut short"), std::string::npos);
  EXPECT_NE(said_of(with_length(2, "{]")).find("its header is no JSON object"), std::string::npos);
  for (const char* keys : {"7", "{}", R"({"dtype":"I64","shape":[-1],"data_offsets":[0,0]})",
                           R"({"dtype":"I64","shape":[1],"data_offsets":[0]})",
                           R"({"dtype":7,"shape":[1],"data_offsets":[0,8]})",
                           R"({"dtype":"I64","shape":1,"data_offsets":[0,8]})"}) {
    const std::string header = cat(R"({"keys":)", keys, "}");
    EXPECT_NE(said_of(with_length(header.size(), header)).find("is not described as"),
              std::string::npos)
        << keys;
  }
  for (const char* range : {"[0,8]", "[8,0]", "[0,18446744073709551615]"}) {
    const std::string header =
        cat(R"({"keys":{"dtype":"I64","shape":[1],"data_offsets":)", range, "}}");
    EXPECT_NE(said_of(with_length(header.size(), header)).find("lies outside of the file"),
              std::string::npos)
        << range;
  }
  // Two tensors of 8 bytes in a file of 16: they share the first 8, and nobody has the rest.
  const std::string twice = R"({"keys":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                            R"("rows":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})";
  std::ofstream(file, std::ios::binary)
      << with_length(twice.size(), twice) << std::string(16, '\0');
  EXPECT_NE(import_table(file, saved, "plain").error().what.find("overlap, or leave a gap"),
            std::string::npos);
  const std::string deep(500'000, '[');
  const std::string nested = cat(R"({"keys":{"dtype":)", deep, std::string(deep.size(), ']'), "}}");
  EXPECT_NE(said_of(with_length(nested.size(), nested)).find("its header is no JSON object"),
            std::string::npos);
  EXPECT_NE(import_table(folder.file("none"), saved, "plain").error().what.find("cannot open"),
            std::string::npos);
}

TEST_F(ImportedTables, OfFtrlNeedAState) {
  Servers ftrl(folder, "ftrl", 1,
               {{.name = "ftrl", .values = 2, .optimizer = {.rule = Optimizer::Rule::kFtrl}}});
  ftrl.begin();
  const std::string there = folder.file("saved ftrl");
  ASSERT_TRUE(save(ftrl.all[0], there, {ftrl.all[0].specs(), 5, 0, 1}, 0));
  ASSERT_TRUE(save_manifest(there, {ftrl.all[0].specs(), 5, 0, 1}));
  tensors({5}, numbers(2)).write(file);
  const auto imported = import_table(file, there, "ftrl");
  ASSERT_FALSE(imported);
  EXPECT_NE(imported.error().what.find("no tensor `state`, from which ftrl computes the rows"),
            std::string::npos);
}

TEST_F(ImportedTables, NeedAWholeSaveAndNobodyBesideThem) {
  const Tensors given = tensors({5}, numbers(7));
  const os::Fd opened(::open(saved.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(opened.get(), LOCK_EX), 0);
  EXPECT_NE(refusal(given).find("another import into "), std::string::npos);
  ASSERT_EQ(::flock(opened.get(), LOCK_UN), 0);
  const std::string own = saved + "/table-0.0-of-2.step-4.run-5.safetensors";
  ASSERT_EQ(::unlink(own.c_str()), 0);
  EXPECT_EQ(refusal(given), "") << "the table that is replaced may be damaged";
  ASSERT_EQ(::unlink((saved + "/table-1.0-of-2.step-4.run-5.safetensors").c_str()), 0);
  EXPECT_NE(refusal(given).find("cannot open"), std::string::npos);
  EXPECT_NE(
      import_table(file, folder.file("none"), "plain").error().what.find("no saved tables in"),
      std::string::npos);
}

TEST_F(ImportedTables, LeaveTheSaveWholeIfTheManifestCanNotBeWritten) {
  EXPECT_EQ(refusal(tensors({5}, numbers(2)), "plain"), "");
  Servers earlier(folder, "earlier", 1);
  ASSERT_TRUE(earlier.load(saved));
  const auto names = os::names_in(saved);
  const rlim_t manifest = os::read_file(saved + "/tables.json")->size();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit lower{manifest - 1, before.rlim_max};  // The file of one row is shorter.
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  tensors({6}, numbers(2)).write(file);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &lower), 0);
  const auto imported = import_table(file, saved, "plain");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  ASSERT_FALSE(imported);
  EXPECT_NE(imported.error().what.find("tables.json: File too large"), std::string::npos)
      << imported.error().what;
  EXPECT_EQ(os::names_in(saved), names);
  Servers later(folder, "later", 1);
  ASSERT_TRUE(later.load(saved));
  EXPECT_EQ(later.digest(), earlier.digest());
}

TEST_F(ImportedTables, AreWholeOrNotThereAfterAKill) {
  std::vector<std::int64_t> keys;
  for (std::int64_t key = 0; key < 20000; ++key) keys.push_back(key);
  const std::uint64_t before = list(saved, true)->tables[0].rows;
  tensors(keys, numbers(keys.size() * 7)).write(file);
  Prng random(11);
  int interrupted = 0;
  for (int i = 0; i < 40; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(import_table(file, saved, "odd/name") ? 0 : 1);
    ::usleep(static_cast<useconds_t>(random.below(8000)));  // Any instant.
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    interrupted += WIFSIGNALED(status) ? 1 : 0;
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    const auto listing = list(saved, true);
    ASSERT_TRUE(listing) << listing.error().what;
    for (const Listed& listed : listing->tables) {
      ASSERT_TRUE(listed.problems.empty()) << listed.problems.front();
    }
    const std::uint64_t rows = listing->tables[0].rows;
    EXPECT_TRUE(rows == before || rows == keys.size()) << rows;
  }
  EXPECT_GT(interrupted, 0);
  // As if one had been killed while it gave the manifest its name, which is a rare instant.
  ASSERT_TRUE(os::write_file_atomically(saved + "/tables.json.17.tmp", ""));
  ASSERT_TRUE(import_table(file, saved, "odd/name"));
  EXPECT_EQ(os::names_in(saved).size(), 1U + 1U + 3 * 2U) << "a killed one leaves nothing for long";
}

}  // namespace
}  // namespace holdfast::table
