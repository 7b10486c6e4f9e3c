// A controller of three ranks, whose stores are durable at once, and what it has sent.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/number.h"
#include "base/text.h"
#include "core/controller/machine.h"
#include "wire/codec.h"

namespace holdfast::controller {

using Nodes = std::set<std::string>;

class ControllerTest : public ::testing::Test {
 protected:
  explicit ControllerTest(std::int32_t world_size = 3) {
    options_.job = "job";
    options_.run_id = 7;
    options_.world_size = world_size;
    options_.topology_timeout = std::chrono::seconds(60);
    options_.lease = std::chrono::seconds(30);
    options_.replacement_timeout = std::chrono::seconds(120);
    machine_.emplace(options_, std::nullopt);
    step(Started{});
  }

  // Every message that is sent, and every formation that is stored, survives encoding and decoding.
  static void expect_readable(const wire::Message& message) {
    const auto back = wire::decode(wire::kind_of(message), wire::encode(message));
    ASSERT_TRUE(back) << back.error().what;
    EXPECT_EQ(*back, message);
  }
  static void expect_readable(const Store& store) {
    if (!store.formation) return;
    const auto back = wire::decode_formation(wire::encode(*store.formation));
    ASSERT_TRUE(back) << back.error().what;
    EXPECT_EQ(*back, *store.formation);
  }

  // Carries out the event; every store is durable at once.
  void step(const Event& event) {
    if (const auto* heard = std::get_if<Received>(&event)) connect(*heard);
    std::size_t stores = 0;
    for (auto& action : machine_->step(now_, event)) {
      if (const auto* store = std::get_if<Store>(&action)) {
        ++stores;
        expect_readable(*store);
        for (const auto& [number, remark] : store->remarks) {
          ASSERT_EQ(number, remarks_.size() + 1);
          remarks_.push_back(remark);
        }
        apply(*store, record_);
      }
      if (const auto* send = std::get_if<Send>(&action)) {
        expect_readable(send->message);
        said_[send->link].push_back(send->message);
      }
      if (const auto* end = std::get_if<End>(&action)) end_ = *end;
      if (const auto* leave = std::get_if<Leave>(&action)) {
        left_ = true;
        lingers_ = leave->lingers;
      }
      if (const auto* close = std::get_if<Close>(&action)) closed_.insert(close->link);
      if (const auto* probe = std::get_if<Probe>(&action)) probes_.push_back(*probe);
      const auto* note = std::get_if<Note>(&action);
      if (note && note->kind == Note::Kind::kHow) hows_.push_back(note->reason);
      if (note && note->kind == Note::Kind::kFault) {
        faults_.push_back(note->reason);
        detected_ns_.push_back(note->detected_ns);
      }
      if (note && note->kind == Note::Kind::kTaken) taken_.push_back(*note);
      if (note && note->kind == Note::Kind::kPlan) plans_.push_back(*note);
      if (note && note->kind == Note::Kind::kRepaired) rebuilt_ = note->rebuilt;
      if (note && note->kind == Note::Kind::kTookOver) took_over_.push_back(note->reason);
    }
    for (; stores > 0; --stores) step(Stored{});
  }

  // Connects a link on which nothing was heard before, as the kind of process that sends this
  // message.
  void connect(const Received& heard) {
    if (machine_->peers().contains(heard.link)) return;
    const bool agent = std::holds_alternative<wire::AgentState>(heard.message);
    step(Connected{heard.link, agent ? wire::PeerKind::kAgent : wire::PeerKind::kWorker});
  }

  static wire::Register who(const std::string& node, Incarnation incarnation,
                            std::uint64_t attempt = 0, const std::string& host = "host") {
    return {.job = "job",
            .node_id = node,
            .incarnation = incarnation,
            .attempt = attempt,
            .host = host,
            .pid = 1,
            .memory = host,
            .endpoint = host + ":1"};
  }
  static wire::Register in_memory_only(wire::Register m) {
    m.endpoint.clear();
    return m;
  }
  // Of an agent's processes, those of servers say so.
  void come(Link link, wire::Register m) {
    const auto number = whole_number(m.node_id);
    const std::int32_t workers = options_.world_size - options_.servers;
    m.serves = m.serves || (m.attempt != 0 && number && *number >= workers);
    step(Received{link, m});
  }
  // The agent on link 90 says to which process it has given this place, the only one that it has.
  void give(const std::string& node, Incarnation incarnation, std::uint64_t attempt) {
    step(Received{90,
                  wire::AgentState{"job", "agent", "host", {{node, incarnation, attempt, true}}}});
  }
  void report(Link link) { step(Received{link, wire::Report{machine_->generation(), 4, 4}}); }
  // Ranks 0, 1 and 2 come on links 1, 2 and 3; 0 and 2 are on one host, 1 is on another.
  void come_from_two_hosts() {
    come(1, who("0", 1, 0, "host-1"));
    come(2, who("1", 2, 0, "host-2"));
    come(3, who("2", 3, 0, "host-1"));
  }
  void report_all(std::initializer_list<Link> links) {
    for (const Link link : links) report(link);
  }

  // What an observer who asks for this drill is told.
  static constexpr Link kObserver = 70;
  wire::Reason ask(const wire::Drill& drill) {
    if (!machine_->peers().contains(kObserver)) {
      step(Connected{kObserver, wire::PeerKind::kObserver});
    }
    step(Received{kObserver, drill});
    const auto* drilled = last<wire::Drilled>(kObserver);
    return drilled == nullptr ? wire::Reason{} : drilled->reason;
  }

  // Brings TimePassed at every deadline, up to and including `end`.
  void pass(Instant end) {
    for (auto at = machine_->deadline(); at && *at <= end; at = machine_->deadline()) {
      now_ = std::max(now_, *at);
      step(TimePassed{});
    }
    now_ = end;
  }

  // All ranks come, on links 1, 2 and 3, and train. attempt 0: no agent has started them.
  void all_train(std::uint64_t attempt = 0) {
    for (Link link = 1; link <= 3; ++link) come(link, who(cat("w", link), 10 * link, attempt));
    for (Link link = 1; link <= 3; ++link) report(link);
    ASSERT_EQ(machine_->stage(), wire::Stage::kRunning);
  }

  // The places that the agent on this link was told last.
  [[nodiscard]] Nodes granted(Link link) const {
    const auto* places = last<wire::Places>(link);
    if (places == nullptr) return {"it was told of none"};
    return {places->node_ids.begin(), places->node_ids.end()};
  }
  template <class Message>
  [[nodiscard]] const Message* last(Link link) const {
    const auto found = said_.find(link);
    if (found == said_.end()) return nullptr;
    for (auto m = found->second.rbegin(); m != found->second.rend(); ++m) {
      if (const auto* message = std::get_if<Message>(&*m)) return message;
    }
    return nullptr;
  }
  [[nodiscard]] wire::Reason refusal(Link link) const {
    const auto* refused = last<wire::Refused>(link);
    return refused ? refused->reason : wire::Reason{};
  }
  [[nodiscard]] Rank rank(Link link) const {
    const auto* part = last<wire::Assignment>(link);
    return part ? part->rank : kNoRank;
  }
  // The newest assignment at this stage that was sent on this link; null: none.
  [[nodiscard]] const wire::Assignment* at(wire::Stage stage, Link link) const {
    const auto found = said_.find(link);
    if (found == said_.end()) return nullptr;
    for (auto m = found->second.rbegin(); m != found->second.rend(); ++m) {
      const auto* part = std::get_if<wire::Assignment>(&*m);
      if (part && part->stage == stage) return part;
    }
    return nullptr;
  }
  // Where all ranks are, by the answer to this worker's question. It was told to train with them.
  std::vector<PeerPlace> places_of(Link link) {
    step(Received{link, wire::AskAddresses{}});
    const auto* said = last<wire::Addresses>(link);
    const auto* part = at(wire::Stage::kRunning, link);
    if (said == nullptr || part == nullptr || part->addresses != said->name) return {};
    const auto book = AddressBook().after(*said);
    return book ? book->places() : std::vector<PeerPlace>();
  }
  [[nodiscard]] SeatState state(const std::string& node) const {
    return machine_->find(node)->state;
  }

  Options options_;
  std::optional<Machine> machine_;
  wire::Formation record_;               // The formation on record,
  std::vector<wire::Remarked> remarks_;  // and the remarks.
  std::map<Link, std::vector<wire::Message>> said_;
  std::optional<End> end_;
  bool left_ = false;
  bool lingers_ = false;
  std::set<Link> closed_;
  std::vector<Probe> probes_;
  std::vector<wire::Reason> hows_;    // The reasons in notes of kind kHow,
  std::vector<wire::Reason> faults_;  // and in those of kind kFault.
  std::vector<Note> taken_;
  std::vector<Note> plans_;
  std::vector<Rebuilt> rebuilt_;            // In the newest note of kind kRepaired,
  std::vector<wire::Reason> took_over_;     // and in all of kind kTookOver.
  std::vector<std::uint64_t> detected_ns_;  // In each note of kind kFault.
  Instant now_{};
};

// Ranks 0 and 1 on host-1 with the agent on link 90, rank 2 on host-2 with the agent on link 91.
// All send heartbeats every 100 ms, until a test says otherwise.
class HostsTest : public ControllerTest {
 protected:
  void SetUp() override {
    options_.host_silence = std::chrono::milliseconds(500);
    machine_.emplace(options_, std::nullopt);
    step(Started{});
    tell(90, "agent-1", "host-1", {{"0", 1, 1, true}, {"1", 2, 1, true}});
    tell(91, "agent-2", "host-2", {{"2", 3, 1, true}});
    come(1, who("0", 1, 1, "host-1"));
    come(2, who("1", 2, 1, "host-1"));
    come(3, who("2", 3, 1, "host-2"));
    for (Link link = 1; link <= 3; ++link) {
      step(Received{link, wire::Report{machine_->generation(), first_, first_}});
    }
    ASSERT_EQ(machine_->stage(), wire::Stage::kRunning);
    beat(std::chrono::seconds(2), {90, 91});
  }
  Version first_ = 4;  // The version that all hold as the job begins.

  void tell(Link link, const std::string& agent, const std::string& host,
            std::vector<wire::PlaceState> places) {
    step(Connected{link, wire::PeerKind::kAgent});
    step(Received{link, wire::AgentState{"job", agent, host, std::move(places)}});
  }
  void beat(Duration time, const std::vector<Link>& links) {
    for (const Instant end = now_ + time; now_ < end;) {
      pass(now_ + std::chrono::milliseconds(100));
      for (const Link link : links) step(Received{link, wire::Heartbeat{}});
    }
  }
};

}  // namespace holdfast::controller
