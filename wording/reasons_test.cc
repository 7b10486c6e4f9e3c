// Every reason has its sentence.
#include "wording/reasons.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"

namespace holdfast::wording {
namespace {

using Kind = wire::Reason::Kind;
using wire::Ending;
using wire::Reason;

TEST(Reasons, AllKindsButNoneAreWordedAndEachInItsOwnWay) {
  std::set<std::string> sentences;
  std::uint8_t kind = 1;
  for (; wire::is_known(static_cast<Reason::Kind>(kind)); ++kind) {
    const Reason reason{.kind = static_cast<Reason::Kind>(kind), .detail = cat("detail ", kind)};
    const std::string text = in_words(reason);
    EXPECT_NE(text, "") << int{kind};
    EXPECT_TRUE(sentences.insert(text).second) << text;
  }
  EXPECT_GT(kind, 40);
  EXPECT_EQ(in_words(Reason{}), "");
}

TEST(Reasons, NamesWhoCanNotBeRead) {
  const std::string detail = "1.2.3.4:5: the peer sent nonsense";
  const auto kind = Reason::Kind::kUnreadable;
  EXPECT_EQ(in_words({.kind = kind, .detail = detail}), detail);
  EXPECT_EQ(in_words({.kind = kind, .node_id = "w3", .detail = detail}),
            "what node 'w3' says can not be read: " + detail);
  EXPECT_EQ(in_words({.kind = kind, .host = "b", .other = "agent-2", .detail = detail}),
            "what agent agent-2 on b says can not be read: " + detail);
}

TEST(Reasons, AllEndingsAreWorded) {
  std::set<std::string> sentences;
  for (std::uint8_t kind = 0; wire::is_known(static_cast<Ending::Kind>(kind)); ++kind) {
    sentences.insert(in_words(Ending{static_cast<Ending::Kind>(kind), 9}));
  }
  EXPECT_EQ(sentences.size(), 9U);
  EXPECT_FALSE(sentences.contains("?"));
}

TEST(Reasons, NameTheRankThatSpeaks) {
  EXPECT_EQ(
      in_words(Reason{.kind = Reason::Kind::kProgram, .rank = 2, .detail = "the loss is NaN"}),
      "rank 2: the loss is NaN");
  EXPECT_EQ(in_words(Reason{.kind = Reason::Kind::kProgram, .detail = "the loss is NaN"}),
            "the loss is NaN");
}

TEST(Reasons, NameWhomAGroupWaitsFor) {
  const Reason reason{.kind = Reason::Kind::kNotFormedInTime,
                      .awaited = {{wire::Awaited::Kind::kNotReplaced, 1, "", 7, {}},
                                  {wire::Awaited::Kind::kNotReported, 2, "", 8, {}}}};
  EXPECT_EQ(in_words(reason),
            "the group could not be formed again within the time limit: rank 1 died and no process "
            "has taken its place; rank 2 (process 8) lives but has not reported");
}

TEST(Reasons, NameWhoNeverCameWhereTheIdsAreRanks) {
  const auto words = [](std::vector<std::string> here, std::int64_t total) {
    Reason reason{.kind = Reason::Kind::kTooFewCame,
                  .count = static_cast<std::int64_t>(here.size()),
                  .total = total};
    for (auto& node_id : here) reason.awaited.push_back({.node_id = std::move(node_id)});
    const std::string text = in_words(reason);
    return text.substr(text.rfind("; ") + 2);
  };
  EXPECT_EQ(words({"0", "2"}, 4), "node '1', '3' never registered");
  EXPECT_EQ(words({"0"}, 13),
            "node '1', '2', '3', '4', '5', '6', '7', '8', '9', '10' and 2 more never registered");
  EXPECT_EQ(words({"0", "w"}, 3), "the others never registered");
  EXPECT_EQ(words({"0", "3"}, 3), "the others never registered");
  EXPECT_EQ(words({"01"}, 2), "the others never registered");
}

TEST(Reasons, OfOneAreNotWordedAsOfMany) {
  const auto words = [](Kind kind, std::int64_t total) {
    return in_words(Reason{.kind = kind, .total = total, .node_id = "7"});
  };
  EXPECT_EQ(words(Kind::kAllEnded, 1), "the one rank has ended in good order");
  EXPECT_EQ(words(Kind::kAllEnded, 2), "all 2 ranks have ended in good order");
  EXPECT_EQ(words(Kind::kNobodyAsked, 1),
            "the one worker has ended (exit code 0) and has not asked for a rank");
  EXPECT_EQ(words(Kind::kPlacesTaken, 1),
            "the one place of the job is taken and is not called '7': this worker is one too many "
            "(see MS_WORKER_NUM, MS_NODE_ID)");
  EXPECT_EQ(words(Kind::kPlacesTaken, 2),
            "all 2 places of the job are taken and none is called '7': this worker is one too many "
            "(see MS_WORKER_NUM, MS_NODE_ID)");
  EXPECT_EQ(words(Kind::kTooFewCame, 1),
            "only 0 of 1 worker came within the time limit (MS_TOPO_TIMEOUT): none is here");
}

TEST(Reasons, SayWhoHoldsUpWhom) {
  Reason why{.kind = Kind::kHoldsUp,
             .rank = 1,
             .pid = 42,
             .count = 1300,
             .total = 3,
             .version = 120,
             .host = "h",
             .doing = Doing::kComputing};
  const auto begins = [&](const std::string& text) { return in_words(why).starts_with(text); };
  const std::string whose = "rank 1 (process 42 on h) ";
  EXPECT_TRUE(begins(whose + "holds up the job: 3 ranks have waited for it for 1.3 s; "));
  why.total = 0;
  EXPECT_TRUE(begins(whose + "waits in an exchange of some ranks, as all others do, for 1.3 s; "));
  why.total = -1;
  EXPECT_TRUE(begins(whose + "has made no step for 1.3 s; ")) << in_words(why);
}

}  // namespace
}  // namespace holdfast::wording
