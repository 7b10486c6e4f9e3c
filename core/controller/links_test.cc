// Who may send what on a connection, and how all hear of the job's end.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/controller/machine.h"

namespace holdfast::controller {
namespace {

using wire::PeerKind;
using wire::Reason;

class LinksTest : public ::testing::Test {
 protected:
  LinksTest() { step(Started{}); }

  void step(const Event& event) {
    std::size_t stores = 0;
    for (const auto& action : machine_.step({}, event)) {
      if (std::holds_alternative<Store>(action)) ++stores;
      if (const auto* send = std::get_if<Send>(&action)) said_[send->link].push_back(send->message);
      if (const auto* close = std::get_if<Close>(&action)) closed_.insert(close->link);
    }
    for (; stores > 0; --stores) step(Stored{});
  }
  void hear(Link link, wire::Message message) { step(Received{link, std::move(message)}); }
  [[nodiscard]] bool was_refused(Link link) const {
    const auto said = said_.find(link);
    if (said == said_.end() || !closed_.contains(link)) return false;
    const auto* refused = std::get_if<wire::Refused>(&said->second.back());
    return refused != nullptr && refused->reason.kind == Reason::Kind::kNotItsWord;
  }
  [[nodiscard]] bool heard_of_end(Link link) const {
    const auto said = said_.find(link);
    return said != said_.end() && closed_.contains(link) &&
           std::holds_alternative<wire::JobEnded>(said->second.back());
  }
  void end() {
    step(Connected{99, PeerKind::kAgent});
    hear(99, wire::AgentState{.job = "job", .places = {{"a"}}});
    hear(99, wire::Failed{{.kind = Reason::Kind::kInterrupted}});
    ASSERT_EQ(machine_.stage(), wire::Stage::kEnded);
  }

  Machine machine_{{.job = "job", .run_id = 7, .world_size = 2}, std::nullopt};
  std::map<Link, std::vector<wire::Message>> said_;
  std::set<Link> closed_;
};

// A message, with the kinds of processes that may send it.
struct Word {
  wire::Message message;
  std::set<PeerKind> speakers;
};
std::vector<Word> words() {
  const auto worker = PeerKind::kWorker;
  const auto agent = PeerKind::kAgent;
  return {{wire::Register{.job = "job", .node_id = "a"}, {worker}},
          {wire::Report{}, {worker}},
          {wire::Repaired{}, {worker}},
          {wire::Progress{}, {worker}},
          {wire::Finished{}, {worker}},
          {wire::AgentState{.job = "job"}, {agent}},
          {wire::Failed{}, {worker, agent}},
          {wire::Put{.id = 1, .key = "k"}, {worker, agent}},
          {wire::Get{.id = 1, .keys = {"k"}}, {worker, agent}},
          {wire::Heartbeat{}, {worker, agent, PeerKind::kObserver}},
          {wire::Assignment{}, {}},
          {wire::Refused{}, {}},
          {wire::Waiting{}, {}},
          {wire::Evict{}, {}},
          {wire::JobProgress{}, {}},
          {wire::Farewell{}, {}},
          {wire::JobEnded{}, {}},
          {wire::StatusQuery{}, {}},
          {wire::StatusReply{}, {}},
          {wire::Kept{}, {}},
          {wire::Got{}, {}},
          {wire::GroupLost{}, {worker}},
          {wire::Remark{}, {worker}},
          {wire::Places{}, {}},
          {wire::Move{.from = "h"}, {PeerKind::kObserver}},
          {wire::Moved{}, {}},
          {wire::Drill{}, {PeerKind::kObserver}},
          {wire::Drilled{}, {}},
          {wire::Addresses{}, {}},
          {wire::AskAddresses{}, {worker, agent}},
          {wire::Snapshot{}, {worker, agent, PeerKind::kObserver}},
          {wire::Pause{}, {worker, agent, PeerKind::kObserver}},
          {wire::Paused{}, {}},
          {wire::Inspect{}, {}}};
}

TEST_F(LinksTest, EachKindOfProcessSaysOnlyWhatIsForIt) {
  ASSERT_EQ(words().size(), std::variant_size_v<wire::Message>);
  Link link = 0;
  for (const auto kind : {PeerKind::kWorker, PeerKind::kAgent, PeerKind::kObserver}) {
    for (const auto& word : words()) {
      step(Connected{++link, kind});
      hear(link, word.message);
      EXPECT_EQ(was_refused(link), !word.speakers.contains(kind))
          << name(kind) << ' ' << wire::kMessageNames[word.message.index()];
      ASSERT_EQ(machine_.stage(), wire::Stage::kAssembling);
      step(Closed{link});
    }
  }
  EXPECT_TRUE(machine_.arrivals().empty());
}

TEST_F(LinksTest, AfterAWrongWordNothingIsHeard) {
  step(Connected{1, PeerKind::kWorker});
  hear(1, wire::AgentState{.job = "job"});
  ASSERT_TRUE(was_refused(1));
  hear(1, wire::Register{.job = "job", .node_id = "a", .incarnation = 1});
  EXPECT_TRUE(machine_.arrivals().empty());
}

TEST_F(LinksTest, WhoCanNotBeReadIsRefusedByName) {
  step(Connected{1, PeerKind::kWorker});
  hear(1, wire::Register{.job = "job", .node_id = "a", .incarnation = 1});
  step(Connected{2, PeerKind::kAgent});
  hear(2, wire::AgentState{.job = "job", .agent_id = "agent-2", .host = "h", .places = {{"a"}}});
  for (const Link link : std::initializer_list<Link>{1, 2}) {
    step(Unreadable{link, "1.2.3.4:5: the peer sent a malformed Report"});
    ASSERT_TRUE(closed_.contains(link));
    const auto* refused = std::get_if<wire::Refused>(&said_[link].back());
    ASSERT_NE(refused, nullptr);
    EXPECT_EQ(refused->reason, (Reason{.kind = Reason::Kind::kUnreadable,
                                       .node_id = link == 1 ? "a" : "",
                                       .host = link == 2 ? "h" : "",
                                       .other = link == 2 ? "agent-2" : "",
                                       .detail = "1.2.3.4:5: the peer sent a malformed Report"}));
    const auto said = said_[link].size();
    step(Unreadable{link, "again"});
    EXPECT_EQ(said_[link].size(), said) << "nothing is heard any more";
  }
}

TEST_F(LinksTest, NothingIsHeardOfALinkThatIsNotConnected) {
  hear(1, wire::Register{.job = "job", .node_id = "a", .incarnation = 1});
  EXPECT_TRUE(machine_.arrivals().empty());
  EXPECT_TRUE(said_.empty());
}

TEST_F(LinksTest, TheEndIsToldToEveryLink) {
  step(Connected{1, PeerKind::kWorker});  // It has not sent anything yet.
  step(Connected{2, PeerKind::kWorker});
  hear(2, wire::Put{.id = 1, .key = "k"});  // It has only put a value, and waits for no answer.
  step(Connected{3, PeerKind::kAgent});
  step(Connected{4, PeerKind::kObserver});
  step(Connected{5, PeerKind::kWorker});
  step(Closed{5});
  end();
  for (const auto link : {Link{1}, Link{2}}) EXPECT_TRUE(heard_of_end(link)) << link;
  for (const auto link : {Link{3}, Link{99}}) {
    ASSERT_FALSE(said_[link].empty());
    EXPECT_TRUE(std::holds_alternative<wire::JobEnded>(said_[link].back()));
    EXPECT_FALSE(closed_.contains(link)) << "an agent hangs up when it has heard it";
  }
  EXPECT_TRUE(closed_.contains(4));
  EXPECT_FALSE(said_.contains(4)) << "an observer is only closed";
  EXPECT_FALSE(closed_.contains(5));
}

TEST_F(LinksTest, WhoConnectsAfterTheEndIsToldAtOnce) {
  end();
  step(Connected{1, PeerKind::kWorker});
  EXPECT_TRUE(heard_of_end(1));
  hear(1, wire::Register{.job = "job", .node_id = "a"});
  EXPECT_EQ(said_[1].size(), 1U) << "once";
}

}  // namespace
}  // namespace holdfast::controller
