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

// Runs protoc --decode or --encode on one message, `input`, and returns its output.
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

// The members of extreme_reason(), one level within another message.
#define EXTREME_REASON                                                                   \
  "  kind: REASON_SPARE_NOT_STARTED\n  rank: -2147483648\n  pid: -9223372036854775808\n" \
  "  ending {\n    kind: ENDING_NOT_HEARD\n    code: -2147483648\n  }\n"                 \
  "  count: -9223372036854775808\n  total: 1\n  version: 18446744073709551615\n"         \
  "  node_id: \"a\"\n  host: \"b\"\n  other: \"c\"\n  other_host: \"d\"\n"               \
  "  detail: \"no \\\"room\\\"\\n\"\n  awaited {\n    kind: AWAITED_NOT_REPAIRED\n"      \
  "    rank: 2147483647\n    node_id: \"a\"\n    pid: -9223372036854775808\n  }\n"       \
  "  awaited {\n    rank: -1\n  }\n  doing: DOING_ENDED\n}"

// The text that protoc has to give for each of extreme_messages(), in that order.
const std::vector<std::string> kTexts = {
    "job: \"job\"\nnode_id: \"n\\303\\266de\"\nincarnation: 18446744073709551615\n"
    "attempt: 18446744073709551615\nhost: \"host\"\npid: -9223372036854775808\n"
    "protocol: 4294967295\nmemory: \"memory\"\nendpoint: \"endpoint\"\ndomain: \"domain\"\n"
    "serves: true\n",
    "rank: -2147483648\nworld_size: 2147483647\nrun_id: 18446744073709551615\n"
    "generation: 18446744073709551615\nstage: STAGE_ENDED\nversion: 18446744073709551615\n"
    "order {\n  act: ACT_BEGIN\n  source {\n    holder: 2147483647\n    host: \"host\"\n"
    "    endpoint: \"endpoint\"\n  }\n  private_source {\n    holder: -2147483648\n"
    "    host: \"h\"\n    endpoint: \"e\"\n  }\n  moved: true\n  snapshot: \"s\"\n}\nended: "
    "-2147483648\ncause "
    "{\n" EXTREME_REASON "\naddresses: 18446744073709551615\npauses: 18446744073709551615\n",
    "sentence: \"no\"\nreason {\n" EXTREME_REASON "\n",
    "reason {\n  kind: REASON_ASSEMBLING\n  rank: -1\n  count: 1\n  total: 2\n}\n"
    "remark: 18446744073709551615\n",
    "job: \"job\"\nagent_id: \"agent\"\nhost: \"host\"\nplaces {\n  node_id: \"a\"\n"
    "  incarnation: 18446744073709551615\n  attempt: 1\n  alive: true\n  ending {\n"
    "    kind: ENDING_SIGNALLED\n    code: 9\n  }\n  detected_ns: 18446744073709551615\n}\n"
    "places {\n}\nprotocol: 4294967295\ntakes: 4294967295\n"
    "spares {\n  node_id: \"a\"\n  is_ready: true\n}\nspares {\n}\n"
    "rehearsals {\n  node_id: \"a\"\n  verdict: VERDICT_SKIPPED\n  version: 18446744073709551615\n"
    "  sentence: \"why\"\n}\nrehearsals {\n}\n"
    "standing {\n  node_id: \"a\"\n  generation: 18446744073709551615\n"
    "  operations: 18446744073709551615\n  version: 18446744073709551615\n"
    "  doing: DOING_ENDED\n  has_stepped: true\n  for_ms: 4294967295\n  report: "
    "\"why\"\n}\nstanding {\n}\nremarks: 18446744073709551615\n",
    "node_id: \"a\"\nincarnation: 18446744073709551615\nis_hung: true\n",
    "generation: 1\nversion: 18446744073709551615\nstaged: 18446744073709551615\n"
    "private_is_own: true\nheld {\n  ward: -2147483648\n  version: 18446744073709551615\n"
    "  staged: 1\n}\nheld {\n  ward: -1\n  version: 18446744073709551615\n"
    "  staged: 18446744073709551615\n}\nhas_lost_shared: true\nhas_lost_private: true\n",
    "generation: 18446744073709551615\nbytes: 18446744073709551615\nis_of_pages: true\n",
    "generation: 2\nversion: 3\nloss: -inf\nown_us: 4294967295\nbetween_us: 7\nholds: \"{}\"\n",
    "generation: 18446744073709551615\nversion: 18446744073709551615\n"
    "loss: 4.94065645841247e-324\nrecoveries: 18446744073709551615\n",
    "generation: 18446744073709551615\nversion: 1\n",
    "",
    "reason {\n  kind: REASON_PROGRAM\n  rank: -1\n  detail: \"the loss is NaN\"\n}\n",
    "success: true\nreason {\n  kind: REASON_ALL_ENDED\n  rank: -1\n  total: 2\n}\n",
    "",
    "json: \"{}\"\n",
    "",
    "id: 18446744073709551615\nkey: \"k/1\"\nvalue: \"v\\000\\377\"\nexpected: "
    "18446744073709551615\nwriter: 18446744073709551615\n",
    "id: 18446744073709551615\nreason {\n  kind: REASON_NO_ROOM\n  rank: -1\n  count: 1\n  total: "
    "2\n}\nis_set: true\nversion: 7\n",
    "id: 18446744073709551615\nkeys: \"k/1\"\nkeys: \"\"\nat_once: true\nnewer_than: "
    "18446744073709551615\n",
    "id: 18446744073709551615\nfound: true\nkey: \"k/1\"\nvalue: \"v\\000\\377\"\nversion: "
    "18446744073709551615\n",
    "generation: 18446744073709551615\npages: 4294967295\n",
    "node_ids: \"a\"\nnode_ids: \"\"\ndrains: true\n",
    "from: \"a\"\nto: \"b\"\ndrains: true\n",
    "reason {\n  kind: REASON_MOVES\n  rank: -1\n  count: 2\n  host: \"a\"\n  other_host: "
    "\"b\"\n}\n",
    "name: 18446744073709551615\nbase: 18446744073709551615\naddresses {\n  host: 4294967295\n"
    "  domain: 4294967295\n  address: \"a\"\n}\naddresses {\n}\nranks: 0\nranks: 4294967295\n"
    "at: 4294967295\nat: 0\nports: 1\nports: 65535\n",
    "",
    "node_id: \"a\"\nincarnation: 18446744073709551615\n",
    "reason {\n  kind: REASON_REPLICAS\n  rank: -1\n  detail: \"why\"\n}\n",
    "rank: -2147483648\nkind: DRILL_CUT\nphase: DOING_ENDED\nat_step: 18446744073709551615\n"
    "for_ms: 4294967295\nseed: 18446744073709551615\nhost: \"a\"\n",
    "reason {\n  kind: REASON_NO_DRILLS\n  rank: -1\n}\n",
    "word: SNAPSHOT_WORD_UNREADABLE\ngeneration: 18446744073709551615\n"
    "version: 18446744073709551615\nname: \"name\"\nfiles {\n  rank: -2147483648\n"
    "  bytes: 18446744073709551615\n  digest: 18446744073709551615\n}\nfiles {\n  rank: -1\n}\n"
    "old: \"old\"\nold: \"\"\nwhy: \"why\"\n",
    "on: true\npauses: 18446744073709551615\nversion: 18446744073709551615\n",
    "reason {\n  kind: REASON_UNPAUSED\n  rank: -1\n  count: 1\n}\n",
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

TEST(Proto, ProtocReadsAndWritesTheFormation) {
  const std::string text =
      "job: \"job\"\nrun_id: 18446744073709551615\ngeneration: 18446744073709551615\n"
      "stage: STAGE_ENDED\nversion: 18446744073709551615\nrecoveries: 18446744073709551615\n"
      "roster {\n  node_id: \"a\"\n"
      "  incarnation: 18446744073709551615\n  attempt: 18446744073709551615\n  pid: -5\n"
      "  host: \"h\"\n  domain: \"d\"\n  endpoint: \"e\"\n  finished: true\n"
      "  version: 18446744073709551615\n  memory: \"m\"\n  moved: true\n  agent: \"agent\"\n  "
      "given: true\n}\nroster {\n}\norders {\n "
      " act: "
      "ACT_RECEIVE\n"
      "  source {\n    holder: 2147483647\n    host: \"host\"\n    endpoint: \"endpoint\"\n"
      "  }\n  private_source {\n    holder: -1\n  }\n}\norders {\n  source {\n    holder: -1\n"
      "  }\n  private_source {\n    holder: -1\n  }\n}\ncause {\n" EXTREME_REASON
      "\nsuccess: true\nend {\n" EXTREME_REASON
      "\ndrained: \"a\"\ndrained: \"\"\n"
      "reached: 18446744073709551615\n"
      "snapshots {\n  version: 18446744073709551615\n  name: \"name\"\n}\nsnapshots {\n}\n"
      "loads: true\npauses: 18446744073709551615\n";
  EXPECT_EQ(protoc("decode", "Formation", encode(extreme_formation())), text);
  EXPECT_EQ(protoc("encode", "Formation", text), encode(extreme_formation()));
}

}  // namespace
}  // namespace holdfast::wire
