// Holds wire/holdfast.proto and our own codec together through the real protoc.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "wire/codec.h"
#include "wire/samples_for_test.h"

namespace holdfast::wire {
namespace {

// protoc --decode or --encode of one message; `input` in, its output out.
std::string protoc(const std::string& what, std::string_view type, const std::string& input) {
  std::string folder = (std::filesystem::temp_directory_path() / "holdfast-proto-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return "no folder";
  std::ofstream(folder + "/in", std::ios::binary) << input;
  const std::string command = std::string(HF_PROTOC) + " --" + what + "=holdfast.wire." +
                              std::string(type) + " --proto_path=" + HF_WIRE +
                              " holdfast.proto 2>&1 < " + folder + "/in";
  std::string output;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  std::array<char, 4096> block{};
  while (pipe != nullptr) {
    const std::size_t got = std::fread(block.data(), 1, block.size(), pipe.get());
    if (got == 0) break;
    output.append(block.data(), got);
  }
  std::filesystem::remove_all(folder);
  return output;
}

// What protoc shall say of extreme_messages(), in that order.
const std::vector<std::string> kTexts = {
    "job: \"job\"\nnode_id: \"n\\303\\266de\"\nincarnation: 18446744073709551615\n"
    "attempt: 18446744073709551615\nhost: \"host\"\npid: -9223372036854775808\n"
    "protocol: 4294967295\ngeneration: 18446744073709551615\nmemory: \"memory\"\n",
    "rank: -2147483648\nworld_size: 2147483647\nrun_id: 18446744073709551615\n",
    "reason: \"no \\\"room\\\"\\n\"\n",
    "reason: \"too few\"\n",
    "job: \"job\"\nagent_id: \"agent\"\nhost: \"host\"\n"
    "slots {\n  node_id: \"a\"\n  incarnation: 18446744073709551615\n  attempt: 1\n  alive: true\n"
    "  exit_code: -2147483648\n  last_words: \"was killed\"\n"
    "  detected_ns: 18446744073709551615\n}\nslots {\n}\n",
    "node_id: \"a\"\nincarnation: 18446744073709551615\n",
    "generation: 18446744073709551615\ncause: \"rank 3 died\"\n",
    "generation: 1\nversion: 18446744073709551615\nstaged: 18446744073709551615\n",
    "generation: 18446744073709551615\nversion: 18446744073709551615\nkind: REPAIR_KIND_BEGIN\n"
    "source: 2147483647\n",
    "generation: 18446744073709551615\n",
    "generation: 18446744073709551615\nended: -2147483648\n",
    "generation: 2\nversion: 3\nloss: -inf\n",
    "generation: 18446744073709551615\nversion: 18446744073709551615\n"
    "loss: 4.94065645841247e-324\nrecoveries: 18446744073709551615\n",
    "generation: 18446744073709551615\nversion: 1\n",
    "",
    "reason: \"the loss is NaN\"\n",
    "success: true\nreason: \"done\"\n",
    "",
    "json: \"{}\"\n",
    "",
};

TEST(Proto, ProtocReadsEveryMessageAsItWasMeant) {
  const auto messages = extreme_messages();
  ASSERT_EQ(messages.size(), kTexts.size());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto type = kind_name(kind_of(messages[i]));
    EXPECT_EQ(protoc("decode", type, encode(messages[i])), kTexts[i]) << type;
  }
}

TEST(Proto, ProtocWritesTheSameBytes) {
  const auto messages = extreme_messages();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto type = kind_name(kind_of(messages[i]));
    EXPECT_EQ(protoc("encode", type, kTexts[i]), encode(messages[i])) << type;
  }
}

TEST(Proto, ProtocReadsAndWritesTheRecord) {
  const std::string text =
      "job: \"job\"\nrun_id: 18446744073709551615\n"
      "ranks {\n  node_id: \"a\"\n  incarnation: 18446744073709551615\n"
      "  attempt: 18446744073709551615\n  finished: true\n  version: 18446744073709551615\n"
      "  pid: -5\n}\n"
      "ranks {\n}\ngeneration: 18446744073709551615\nresumed: true\n"
      "version: 18446744073709551615\nrecoveries: 18446744073709551615\nended: true\n"
      "success: true\nreason: \"all good\"\n";
  EXPECT_EQ(protoc("decode", "Record", encode(extreme_record())), text);
  EXPECT_EQ(protoc("encode", "Record", text), encode(extreme_record()));
}

}  // namespace
}  // namespace holdfast::wire
