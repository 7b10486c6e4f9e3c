// Shards: what was written is read, other programs can read it, and whatever is damaged is named.
#include "snapshot/shard.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/digest.h"
#include "base/number.h"
#include "base/prng.h"
#include "snapshot/safetensors.h"
#include "snapshot/seal.h"
#include "snapshot/testing.h"

namespace holdfast::snapshot {
namespace {

using testing::bytes_of;
using testing::has;
using testing::text_of;
using testing::why_not;
using testing::write_small;
using testing::write_text;

std::string noise(std::size_t bytes, std::uint64_t seed) {
  Prng random(seed);
  std::string text(bytes, '\0');
  for (char& byte : text) byte = static_cast<char>(random.below(256));
  return text;
}

// A header as its writer would have sealed it, before any tensors.
std::string sealed(const std::string& header, const std::string& tensors) {
  const Seal seal{",\"xxh3\":\"", "\"}}"};
  const std::string text = header + seal.of(header);
  std::string file(8, '\0');
  const std::uint64_t length = text.size();
  std::memcpy(file.data(), &length, sizeof length);
  return file + text + tensors;
}

class Shards : public ::testing::Test {
 protected:
  const os::TemporaryFolder folder{"/dev/shm"};
  const std::string path = folder / "shard";
};

TEST_F(Shards, AreReadAsTheyWereWritten) {
  const std::string large = noise((std::size_t{5} << 19) + 7, 3);  // Two blocks and a half.
  const std::string odd = "na\"me/\\ of a tensor\n\xc3\xa4";
  const Piece pieces[]{{"z", bytes_of(large)}, {odd, bytes_of(odd)}, {"empty", {}}};
  const About about{{"rank", "3"}, {"a \"key\"", "a\nvalue"}, {"empty", ""}};
  ASSERT_TRUE(write_shard(path, about, pieces));
  struct stat file {};
  ASSERT_EQ(::stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777U, 0600U);
  const auto shard = Shard::open(path);
  ASSERT_TRUE(shard) << shard.error().what;
  EXPECT_EQ(shard->about(), about);
  EXPECT_EQ(shard->bytes(), static_cast<std::uint64_t>(file.st_size));
  ASSERT_EQ(shard->tensors().size(), 3U);
  EXPECT_EQ(shard->tensors()[0].name, "z");
  EXPECT_EQ(shard->tensors()[0].at % 64, 0U);
  EXPECT_EQ(shard->tensors()[0].digest, digest(bytes_of(large)));
  EXPECT_EQ(shard->tensors()[1].name, odd);
  EXPECT_EQ(text_of(*shard, "z"), large);
  EXPECT_EQ(text_of(*shard, odd), odd);
  EXPECT_EQ(text_of(*shard, "empty"), "");
  EXPECT_EQ(shard->find("zz"), nullptr);
  EXPECT_TRUE(shard->check(*shard->find("z")));
  ASSERT_TRUE(write_small(path, 1, "new"));
  EXPECT_EQ(text_of(*Shard::open(path), "moments"), "moments new");
  EXPECT_NE(Shard::open(path)->digest(), shard->digest());
}

TEST_F(Shards, MayBeOfNoTensor) {
  ASSERT_TRUE(write_shard(path, {}, {}));
  const auto shard = Shard::open(path);
  ASSERT_TRUE(shard) << shard.error().what;
  EXPECT_TRUE(shard->tensors().empty());
  EXPECT_TRUE(shard->about().empty());
}

// As https://github.com/huggingface/safetensors has it, and as its reader checks it.
TEST_F(Shards, AreOfTheFormatOfSafetensors) {
  ASSERT_TRUE(write_small(path, 4, "x"));
  const std::string file = *os::read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  ASSERT_EQ(file[8], '{');
  const auto header = nlohmann::json::parse(file.substr(8, length));
  std::uint64_t end = 0;
  for (const char* name : {"parameters", "moments"}) {
    const auto& tensor = header[name];
    EXPECT_EQ(tensor.size(), 3U);
    EXPECT_EQ(tensor["dtype"], "U8");
    EXPECT_EQ(tensor["data_offsets"][0], end);
    end = tensor["data_offsets"][1];
    EXPECT_EQ(tensor["shape"][0], end - tensor["data_offsets"][0].get<std::uint64_t>());
  }
  EXPECT_EQ(8 + length + end, file.size());
  EXPECT_EQ(length % 8, 0U);
  for (const auto& [key, value] : header["__metadata__"].items()) EXPECT_TRUE(value.is_string());
  EXPECT_EQ(header["__metadata__"]["word"], "x");
  EXPECT_EQ(header["__metadata__"]["xxh3.moments"],
            hex(digest(std::as_bytes(std::span("moments x", 9)))));
}

TEST_F(Shards, AreDamagedByAnyFlippedBit) {
  ASSERT_TRUE(write_small(path, 0, "x"));
  const std::string good = *os::read_file(path);
  const std::size_t head_bytes = Shard::open(path)->tensors().front().at;
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      write_text(path, bad);
      const auto shard = Shard::open(path);
      ASSERT_EQ(shard.has_value(), i >= head_bytes) << i << ": " << why_not(shard);
      if (!shard) continue;
      const bool is_of_first = i < shard->find("moments")->at;
      EXPECT_TRUE(
          has(text_of(*shard, is_of_first ? "parameters" : "moments"), "is not as it was written"))
          << i;
      EXPECT_FALSE(has(text_of(*shard, is_of_first ? "moments" : "parameters"), path)) << i;
    }
  }
}

TEST_F(Shards, AreRefusedIfCutShortAnywhere) {
  ASSERT_TRUE(write_small(path, 0, "x"));
  const std::string good = *os::read_file(path);
  for (std::size_t size = 0; size < good.size(); ++size) {
    write_text(path, good.substr(0, size));
    EXPECT_FALSE(Shard::open(path)) << size;
  }
  write_text(path, good + "x");
  EXPECT_TRUE(has(why_not(Shard::open(path)), "its size is not that of its tensors"));
}

// A stranger can compute digests as well.
TEST_F(Shards, AreNotBelievedForTheSakeOfTheirSeal) {
  const auto refusal = [&](const std::string& header, const std::string& tensors = "12345678") {
    write_text(path, sealed(header, tensors));
    return why_not(Shard::open(path));
  };
  const std::string metadata =
      R"("__metadata__":{"holdfast_shard":"1","xxh3.a":"0000000000000000",)"
      R"("xxh3.b":"0000000000000000")";
  const auto with = [&](const std::string& tensors) { return cat("{", tensors, ",", metadata); };
  const std::string a = R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  EXPECT_EQ(refusal(with(a)), "");
  EXPECT_TRUE(has(text_of(*Shard::open(path), "a"), "is not as it was written"));
  for (const std::string& wrong : std::vector<std::string>{
           R"("a":7)", R"("a":{})", R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0]})",
           R"("a":{"dtype":"I8","shape":[8],"data_offsets":[0,8]})",
           R"("a":{"dtype":"U8","shape":[7],"data_offsets":[0,8]})",
           R"("a":{"dtype":"U8","shape":[2,4],"data_offsets":[0,8]})",
           R"("a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]})",
           R"("a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]})",
           R"("a":{"dtype":"U8","shape":[8],"data_offsets":[-8,0]})",
           R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0.0,8.0]})",
           R"("a":{"dtype":"U8","shape":[8],"data_offsets":["0","8"]})",
           cat(R"("a":{"dtype":"U8","shape":[)", ~0UL, R"(],"data_offsets":[0,)", ~0UL, "]}"),
           R"("c":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})"}) {
    EXPECT_TRUE(has(refusal(with(wrong)), "its header makes no sense")) << wrong;
  }
  const auto two = [&](const char* first, const char* second) {
    return refusal(with(cat(R"("a":{"dtype":"U8","shape":[4],"data_offsets":)", first,
                            R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)", second, "}")));
  };
  EXPECT_EQ(two("[4,8]", "[0,4]"), "");
  EXPECT_TRUE(has(two("[0,4]", "[3,7]"), "overlap, or leave a gap"));
  EXPECT_TRUE(has(two("[0,4]", "[0,4]"), "overlap, or leave a gap"));
  write_text(path, sealed(with(a), "123456789"));
  EXPECT_TRUE(has(why_not(Shard::open(path)), "its size is not that of its tensors"));
  for (const char* header :
       {R"([1)", R"({"__metadata__":{"holdfast_shard":"2")", R"({"__metadata__":{"rank":"1")",
        R"({"__metadata__":{"holdfast_shard":"1","rank":1)",
        R"({"__metadata__":{"holdfast_shard":"1","rank":{})", "{\"__metadata__\":{\"\xff\":\"\""}) {
    EXPECT_TRUE(has(refusal(header, ""), "its header makes no sense")) << header;
  }
  const std::string deep(500'000, '[');
  EXPECT_TRUE(has(refusal(with(cat(R"("a":)", deep, std::string(deep.size(), ']')))),
                  "its header makes no sense"));
}

// The memory of a former shard is used again. Nothing of it is left, also after a kill.
TEST_F(Shards, TakeTheMemoryOfAFormerOne) {
  const std::string large = noise(100'000, 3);
  const std::string small = noise(50'000, 4);
  const Piece first[]{{"a", bytes_of(large)}};
  const Piece second[]{{"a", bytes_of(small)}};
  ASSERT_TRUE(write_shard(path, {}, first));
  struct stat before {};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  ASSERT_TRUE(write_shard(path, {{"k", "v"}}, second));
  struct stat after {};
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  const auto shard = Shard::open(path);
  ASSERT_TRUE(shard) << shard.error().what;
  std::string read(small.size(), '\0');
  ASSERT_TRUE(shard->read(shard->tensors()[0], std::as_writable_bytes(std::span(read))));
  EXPECT_EQ(read, small);

  const pid_t child = ::fork();
  if (child == 0) {
    // It may write no more than half of it, and dies of that.
    const rlimit half{large.size() / 2, large.size() / 2};
    (void)::truncate(path.c_str(), 10);
    (void)::signal(SIGXFSZ, SIG_DFL);
    (void)::setrlimit(RLIMIT_FSIZE, &half);
    (void)write_shard(path, {}, first);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(Shard::open(path));
}

// It takes time and memory in proportion to its length, which is bounded.
TEST_F(Shards, CostLittleIfTheirHeaderIsFullOfNothing) {
  const auto filled = [](std::string header, const char* with) {
    for (int i = 0; header.size() + 64 < kLongestHeader; ++i) header += cat(",\"", i, "\":", with);
    return sealed(header, "");
  };
  const std::string metadata = R"({"__metadata__":{"holdfast_shard":"1")";
  write_text(path, filled(metadata, "\"\""));
  const auto shard = Shard::open(path);
  ASSERT_TRUE(shard) << shard.error().what;
  EXPECT_GT(shard->about().size(), 300'000U);
  for (const char* with : {"{}", "[[[[[[[[[["}) {
    write_text(path, filled(metadata, with));
    EXPECT_TRUE(has(why_not(Shard::open(path)), "its header makes no sense"));
  }
  write_text(path, sealed(metadata + std::string(kLongestHeader, ' '), ""));
  EXPECT_TRUE(has(why_not(Shard::open(path)), "does not begin as a safetensors file"));
}

TEST_F(Shards, MayHaveManyTensors) {
  std::vector<std::string> names;
  std::vector<Piece> pieces;
  for (int i = 0; i < 40'000; ++i) names.push_back(cat("tensor-", i));
  for (const std::string& name : names) pieces.push_back({name, bytes_of(name)});
  EXPECT_TRUE(has(why_not(write_shard(path, {}, pieces)), "has too many tensors"));
  EXPECT_TRUE(os::names_in(folder.path()).empty());
  pieces.resize(20'000);
  ASSERT_TRUE(write_shard(path, {}, pieces));
  const auto many = Shard::open(path);
  ASSERT_TRUE(many) << many.error().what;
  EXPECT_EQ(text_of(*many, "tensor-19999"), "tensor-19999");
}

TEST_F(Shards, AreNoOtherThings) {
  EXPECT_TRUE(has(why_not(Shard::open(path)), cat("cannot open ", path)));
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(has(why_not(Shard::open(path)), "it is no file"));
  EXPECT_TRUE(has(why_not(Shard::open(folder.path())), "it is no file"));
}

TEST_F(Shards, LeaveNothingWhereThereIsNoRoom) {
  const std::string large(3 << 20, 'x');
  const Piece piece{"a", bytes_of(large)};
  const auto refusal = [&] {
    const Status written = write_shard(path, {}, {&piece, 1});
    return written ? "" : written.error().what;
  };
  const auto result = os::on_a_tmpfs(folder.path(), "size=2m", [&] {
    const std::string why = refusal();
    const bool said = has(why, cat("cannot write the 3145728 bytes of a snapshot's shard to ", path,
                                   ", in the folder ", folder.path(),
                                   ": No space left on device; free some room there"));
    return said && os::names_in(folder.path()).empty() ? 0 : 1;
  });
  if (result) {
    EXPECT_EQ(*result, 0);
  }
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit lower{std::size_t{1} << 20, before.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &lower), 0);
  const std::string why = refusal();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_TRUE(has(why, "File too large")) << why;
  EXPECT_TRUE(os::names_in(folder.path()).empty());
  EXPECT_FALSE(write_shard(folder / "none/shard", {}, {&piece, 1}));
}

TEST_F(Shards, AreDamagedIfCutWhileTheyAreRead) {
  ASSERT_TRUE(write_small(path, 0, "x"));
  const auto shard = Shard::open(path);
  ASSERT_EQ(::truncate(path.c_str(), 100), 0);
  EXPECT_TRUE(has(text_of(*shard, "moments"), "it can not be read to its end"));
}

}  // namespace
}  // namespace holdfast::snapshot
