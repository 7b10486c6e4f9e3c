// Snapshots in a folder: whole ones are found, the newest first; all others are named, or refused.
#include "snapshot/folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "os/files.h"
#include "snapshot/seal.h"
#include "snapshot/testing.h"

namespace holdfast::snapshot {
namespace {

namespace fs = std::filesystem;
using testing::has;
using testing::manifest_of;
using testing::snap;
using testing::text_of;
using testing::why_not;
using testing::write_small;
using testing::write_text;

constexpr uid_t kOther = 65534;

class Snapshots : public ::testing::Test {
 protected:
  // The manifest of "a1", changed and sealed again.
  std::string refusal(const std::string& what, const std::string& with) {
    const std::string path = manifest();
    const std::string good = *os::read_file(path);
    std::string text = good;
    const auto at = text.find(what);
    EXPECT_NE(at, text.npos) << what;
    text.replace(at, what.size(), with);
    text.resize(text.rfind(",\n  \"xxh3\""));
    write_text(path, text + Seal{",\n  \"xxh3\": \"", "\"\n}\n"}.of(text));
    const std::string why = why_not(read_manifest(dir, "a1"));
    write_text(path, good);
    return why;
  }
  [[nodiscard]] std::string manifest(const std::string& name = "a1") const {
    return cat(dir, '/', name, "/manifest.json");
  }

  const os::TemporaryFolder folder;
  std::string dir = folder / "some/where";
  const std::string shard = folder / "shard";
};

TEST_F(Snapshots, AreFoundTheNewestFirst) {
  EXPECT_TRUE(find(dir)->whole.empty());
  for (const auto& [name, version] : {std::pair{"b0", 20}, {"a1", 30}, {"c-2", 10}}) {
    const Status snapped = snap(dir, name, static_cast<Version>(version));
    ASSERT_TRUE(snapped) << snapped.error().what;
  }
  const auto listing = find(dir);
  ASSERT_TRUE(listing);
  ASSERT_EQ(listing->whole.size(), 3U);
  EXPECT_TRUE(listing->half.empty());
  EXPECT_TRUE(listing->unusable.empty());
  EXPECT_EQ(listing->whole[0].name, "a1");
  EXPECT_EQ(listing->whole[1].name, "b0");
  EXPECT_EQ(listing->whole[2].name, "c-2");
  const Manifest& newest = listing->whole[0].manifest;
  EXPECT_EQ(newest, manifest_of(30, newest.files));
  ASSERT_EQ(newest.files.size(), 2U);
  EXPECT_EQ(newest.files[1].bytes, fs::file_size(path_of(dir, "a1", 1)));
  const auto opened = open_shard(dir, "a1", newest.files[1]);
  ASSERT_TRUE(opened) << opened.error().what;
  EXPECT_EQ(text_of(*opened, "parameters"), "parameters of 1, version 30");
  EXPECT_TRUE(verify(dir, "a1"));
  struct stat about {};
  ASSERT_EQ(::stat(cat(dir, "/a1").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777U, 0700U);
  ASSERT_EQ(::stat(manifest().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777U, 0600U);
}

TEST_F(Snapshots, AreFoundOnlyWhereTheyMayBe) {
  ASSERT_TRUE(snap(dir, "a1", 1));
  fs::create_directories(cat(dir, "/100"));  // Somebody's checkpoint of epoch 100.
  write_text(cat(dir, "/100/model.pt"), "weights");
  fs::create_directories(cat(dir, "/checkpoint"));
  write_text(cat(dir, "/abc"), "a file");
  fs::create_directories(cat(dir, "/200"));
  fs::create_directories(cat(dir, "/b0"));
  write_text(cat(dir, "/b0/rank-0.safetensors.123.tmp"), "a draft");
  const auto listing = find(dir);
  ASSERT_EQ(listing->whole.size(), 1U);
  EXPECT_EQ(listing->half, (std::vector<std::string>{"200", "b0"}));
  EXPECT_TRUE(listing->unusable.empty());
  EXPECT_TRUE(has(why_not(remove(dir, "100")), "100 has model.pt, which is none of"));
  EXPECT_TRUE(fs::exists(cat(dir, "/100/model.pt")));
  EXPECT_TRUE(has(why_not(find(cat(dir, "/abc"))), "Not a directory"));
  for (const std::string& half : listing->half) EXPECT_TRUE(remove(dir, half));
  EXPECT_TRUE(remove(dir, "b0")) << "it is gone";
  EXPECT_TRUE(find(dir)->half.empty());
  EXPECT_TRUE(remove(dir, "a1"));
  EXPECT_EQ(os::names_in(dir), (std::vector<std::string>{"100", "abc", "checkpoint"}));
}

TEST_F(Snapshots, HavePlainNames) {
  for (const std::string name : {"", ".", "..", "../a1", "a1/b", "A1", "a1 ", "a\n", "x"}) {
    EXPECT_FALSE(is_name(name));
    EXPECT_TRUE(has(why_not(store_shard(shard, dir, name, 0)), "is no name of a snapshot"));
    EXPECT_TRUE(has(why_not(name_snapshot(dir, name, {})), "is no name of a snapshot"));
    EXPECT_TRUE(has(why_not(read_manifest(dir, name)), "is no name of a snapshot"));
    EXPECT_TRUE(has(why_not(remove(dir, name)), "is no name of a snapshot"));
  }
  EXPECT_FALSE(is_name(std::string(101, 'a')));
  EXPECT_TRUE(is_name("0123456789abcdef-12"));
}

TEST_F(Snapshots, OfOthersAreLeftAlone) {
  ASSERT_TRUE(snap(dir, "a1", 1));
  const std::string inside = cat(dir, "/a1");
  const auto refused = [&](const std::string& why) {
    EXPECT_TRUE(has(why_not(read_manifest(dir, "a1")), why)) << why_not(read_manifest(dir, "a1"));
    EXPECT_TRUE(has(why_not(remove(dir, "a1")), why));
    EXPECT_TRUE(has(why_not(name_snapshot(dir, "a1", manifest_of(1, {}))), why));
    EXPECT_TRUE(write_small(shard, 0, "x"));
    EXPECT_TRUE(has(why_not(store_shard(shard, dir, "a1", 0)), why));
    const auto listing = find(dir);
    EXPECT_TRUE(listing->whole.empty());
    ASSERT_EQ(listing->unusable.size(), 1U);
    EXPECT_TRUE(has(listing->unusable[0], why));
    EXPECT_TRUE(fs::exists(inside + "/manifest.json"));
  };
  fs::permissions(inside, fs::perms::all);
  refused("a1 is open to other users and is left alone");
  fs::permissions(inside, fs::perms(0755));
  EXPECT_TRUE(read_manifest(dir, "a1")) << "others may read it";
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(inside.c_str(), kOther, kOther), 0);
    refused("a1 belongs to user 65534 and is left alone");
    ASSERT_EQ(::chown(inside.c_str(), 0, 0), 0);
  }
  fs::rename(inside, folder / "elsewhere");
  fs::create_directory_symlink(folder / "elsewhere", inside);
  refused("a1 is a link and is left alone");
}

TEST_F(Snapshots, AreNamedOnlyWhenAllIsThere) {
  EXPECT_TRUE(has(why_not(name_snapshot(dir, "a1", manifest_of(1, {{0, 5, 6}}))),
                  cat("cannot write ", manifest(), ": No such file")));
  ASSERT_TRUE(write_small(shard, 0, "x"));
  const auto file = store_shard(shard, dir, "a1", 0);
  ASSERT_TRUE(file) << file.error().what;
  EXPECT_EQ(find(dir)->half, std::vector<std::string>{"a1"});
  File other = *file;
  other.rank = 1;
  EXPECT_EQ(why_not(name_snapshot(dir, "a1", manifest_of(1, {*file, other}))),
            cat("a snapshot needs ", path_of(dir, "a1", 1),
                ": No such file or directory; all hosts have to share ", dir));
  EXPECT_TRUE(has(why_not(name_snapshot(dir, "a1", manifest_of(1, {}))), "it makes no sense"));
  EXPECT_TRUE(
      has(why_not(name_snapshot(dir, "a1", manifest_of(1, {*file, *file}))), "it makes no sense"));
  EXPECT_FALSE(fs::exists(manifest()));
  EXPECT_TRUE(name_snapshot(dir, "a1", manifest_of(1, {*file})));
  EXPECT_EQ(find(dir)->whole.size(), 1U);
}

TEST_F(Snapshots, AreOfShardsThatAreRight) {
  ASSERT_TRUE(write_small(shard, 0, "x"));
  std::string text = *os::read_file(shard);
  write_text(shard, std::string(text.size(), '\0'));  // As a worker leaves it that is killed.
  EXPECT_TRUE(has(why_not(store_shard(shard, dir, "a1", 0)), "its header is not as it was"));
  EXPECT_TRUE(has(why_not(store_shard(folder / "none", dir, "a1", 0)), "cannot open"));
  ASSERT_TRUE(write_small(shard, 0, "x"));
  EXPECT_TRUE(has(why_not(store_shard(shard, dir, "a1", 0, Clock::now())),
                  cat("writing ", path_of(dir, "a1", 0), " was given up")));
  EXPECT_TRUE(os::names_in(cat(dir, "/a1")).empty());
}

// More than is written at once, and than goes to the disk at once.
TEST_F(Snapshots, MayBeLarge) {
  std::string large(std::size_t{90} << 20, '\0');
  for (std::size_t i = 0; i < large.size(); i += 1000) large[i] = static_cast<char>(i / 1000);
  const std::string small = "small";
  const Piece pieces[]{{"a", testing::bytes_of(large)}, {"b", testing::bytes_of(small)}};
  ASSERT_TRUE(write_shard(shard, {}, pieces));
  const auto file = store_shard(shard, dir, "a1", 0);
  ASSERT_TRUE(file) << file.error().what;
  ASSERT_TRUE(name_snapshot(dir, "a1", manifest_of(1, {*file})));
  EXPECT_TRUE(verify(dir, "a1"));
  EXPECT_TRUE(text_of(*open_shard(dir, "a1", *file), "a") == large);
  // Bytes that changed on their way are found by whoever reads them.
  large[5] = 'x';
  const os::Fd changed(::open(shard.c_str(), O_WRONLY | O_CLOEXEC));
  const std::uint64_t at = open_shard(dir, "a1", *file)->find("a")->at;
  ASSERT_TRUE(os::write_at(changed.get(), at, testing::bytes_of(large).first(6)));
  const auto wrong = store_shard(shard, dir, "a2", 0);
  ASSERT_TRUE(wrong) << wrong.error().what;
  ASSERT_TRUE(name_snapshot(dir, "a2", manifest_of(2, {*wrong})));
  EXPECT_TRUE(has(why_not(verify(dir, "a2")), "its tensor `a` is not as it was written"));
}

TEST_F(Snapshots, AreRefusedIfAManifestMakesNoSense) {
  ASSERT_TRUE(snap(dir, "a1", 1));
  EXPECT_EQ(refusal("digits", "others"), "");
  EXPECT_EQ(refusal("\"release\"", "\"one of tomorrow\""), "") << "one of yesterday";
  EXPECT_TRUE(has(refusal("\"holdfast_snapshot\": 1", "\"holdfast_snapshot\": 2"),
                  "it is of format 2, and this release knows 1"));
  EXPECT_TRUE(has(refusal("\"holdfast_snapshot\"", "\"other\""), "it is none of ours"));
  for (const auto& [what, with] : std::vector<std::pair<std::string, std::string>>{
           {"\"world_size\": 2", "\"world_size\": 3"},
           {"\"world_size\": 2", "\"world_size\": 1"},
           {"\"world_size\": 2", "\"world_size\": 4294967298"},
           {"\"world_size\": 2", "\"world_size\": 2.0"},
           {"\"world_size\": 2", "\"world_size\": \"2\""},
           {"\"servers\": 0", "\"servers\": 2"},
           {"\"servers\": 0", "\"servers\": -1"},
           {"\"version\": 1", "\"version\": -1"},
           {"\"version\": 1", "\"version\": 18446744073709551616"},
           {"\"job\": \"digits\"", "\"job\": 7"},
           {"\"unix_ms\": 17", "\"unix_ms\": 999999999917"},
           {"\"release\": \"", cat("\"release\": \"", std::string(100, '1'))},
           {"\"release\": \"0.1.0\"", "\"release\": 1"},
           {"\"rank\": 1", "\"rank\": 0"},
           {"\"rank\": 1", "\"rank\": 2"},
           {"\"rank\": 1", "\"rank\": -1"},
           {"\"files\": [", "\"files\": 7, \"x\": ["},
           {"\"files\": [", "\"files\": [7,"},
           {"\"xxh3\": \"", "\"xxh3\": \"0"},
           {"\"xxh3\": \"", "\"xxh4\": \""}}) {
    EXPECT_TRUE(has(refusal(what, with), cat(manifest(), " can not be used: it makes no sense")))
        << with << ": " << refusal(what, with);
  }
  EXPECT_TRUE(has(refusal("\"bytes\": ", "\"bytes\": 1"), "and the snapshot's manifest says 1"));
  write_text(manifest(), "{}");
  EXPECT_TRUE(has(why_not(read_manifest(dir, "a1")), "it is damaged"));
  write_text(manifest(), "");
  EXPECT_TRUE(has(why_not(read_manifest(dir, "a1")), "it is damaged"));
  fs::resize_file(manifest(), std::uint64_t{1} << 40);
  EXPECT_TRUE(has(why_not(read_manifest(dir, "a1")), "it is too long"));
  fs::remove(manifest());
  ASSERT_EQ(::mkfifo(manifest().c_str(), 0600), 0);
  EXPECT_TRUE(has(why_not(read_manifest(dir, "a1")), "it is no file"));
  EXPECT_EQ(find(dir)->unusable.size(), 1U);
  fs::remove(manifest());
  EXPECT_TRUE(has(why_not(read_manifest(dir, "a1")), "there is no snapshot: cannot open "));
  EXPECT_TRUE(has(why_not(read_manifest(dir, "b1")), "there is no snapshot: cannot open "));
}

TEST_F(Snapshots, AreRefusedIfAFileIsAnother) {
  ASSERT_TRUE(snap(dir, "a1", 1));
  ASSERT_TRUE(snap(dir, "a2", 2));
  fs::copy_file(path_of(dir, "a2", 0), path_of(dir, "a1", 0), fs::copy_options::overwrite_existing);
  ASSERT_TRUE(read_manifest(dir, "a1")) << "it is as long";
  EXPECT_EQ(why_not(verify(dir, "a1")),
            cat(path_of(dir, "a1", 0),
                " can not be used: it is a shard of another snapshot than "
                "its manifest"));
  fs::resize_file(path_of(dir, "a1", 0), 100);
  EXPECT_TRUE(has(why_not(read_manifest(dir, "a1")), "it has 100 bytes, and"));
  fs::remove(path_of(dir, "a1", 0));
  EXPECT_TRUE(has(why_not(read_manifest(dir, "a1")),
                  cat("a snapshot needs ", path_of(dir, "a1", 0), ": No such file")));
  fs::create_directory(path_of(dir, "a1", 0));
  EXPECT_TRUE(has(why_not(read_manifest(dir, "a1")), "it is no file"));
  ASSERT_EQ(find(dir)->whole.size(), 1U);
  EXPECT_EQ(find(dir)->unusable.size(), 1U);
  EXPECT_TRUE(verify(dir, "a2"));
}

TEST_F(Snapshots, AreDamagedByAnyFlippedBit) {
  const os::TemporaryFolder memory("/dev/shm");  // Many small writes.
  dir = memory.path();
  ASSERT_TRUE(snap(dir, "a1", 1));
  std::size_t flips = 0;
  for (const std::string& path : {manifest(), path_of(dir, "a1", 0), path_of(dir, "a1", 1)}) {
    const std::string good = *os::read_file(path);
    for (std::size_t i = 0; i < good.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit, ++flips) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
        write_text(path, bad);
        EXPECT_TRUE(has(why_not(verify(dir, "a1")), path)) << path << " at " << i;
      }
    }
    write_text(path, good);
  }
  EXPECT_GT(flips, 8000U);
  EXPECT_TRUE(verify(dir, "a1"));
}

TEST_F(Snapshots, StayAsTheyAreIfThereIsNoRoom) {
  ASSERT_TRUE(snap(dir, "a1", 1));
  const std::string large(std::size_t{3} << 20, 'x');
  const Piece piece{"a", testing::bytes_of(large)};
  ASSERT_TRUE(write_shard(shard, {}, {&piece, 1}));
  const auto result = os::on_a_tmpfs(dir, "size=2m,mode=0700", [&] {
    if (!snap(dir, "a1", 1)) return 1;
    const std::string why = why_not(store_shard(shard, dir, "a2", 0));
    if (!has(why, cat("cannot write ", path_of(dir, "a2", 0), ": No space left on device")))
      return 2;
    if (!os::names_in(cat(dir, "/a2")).empty()) return 3;
    return find(dir)->whole.size() == 1 && verify(dir, "a1") && remove(dir, "a2") ? 0 : 4;
  });
  if (result) {
    EXPECT_EQ(*result, 0);
  }
  // Room for the shards, and too little for a manifest.
  ASSERT_TRUE(write_small(shard, 0, "x"));
  const auto file = store_shard(shard, dir, "a2", 0);
  ASSERT_TRUE(file);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit lower{100, before.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &lower), 0);
  const std::string why = why_not(name_snapshot(dir, "a2", manifest_of(2, {*file})));
  const std::string why_again = why_not(store_shard(shard, dir, "a2", 0));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_TRUE(has(why, cat("cannot write ", manifest("a2"), ": File too large"))) << why;
  EXPECT_TRUE(has(why_again, cat("cannot write ", path_of(dir, "a2", 0)))) << why_again;
  EXPECT_EQ(os::names_in(cat(dir, "/a2")).size(), 1U);
  EXPECT_TRUE(name_snapshot(dir, "a2", manifest_of(2, {*file}))) << "what was there is whole";
  EXPECT_TRUE(verify(dir, "a2"));
}

}  // namespace
}  // namespace holdfast::snapshot
