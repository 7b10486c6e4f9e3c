// The scheduler's machine. Its links are numbers; its stores become durable by "stored", the oldest
// first.
#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <sstream>

#include "base/text.h"
#include "core/controller/machine.h"
#include "sim/words.h"
#include "tests/transcripts/players.h"

namespace holdfast::transcripts {
namespace {

using wire::Reason;

class ControllerPlayer : public Player {
 public:
  std::vector<std::string> play(const std::string& line) override {
    std::istringstream in(line);
    std::string verb;
    in >> verb;
    if (verb == "start") {
      in >> options_.world_size;
      return restart(false);
    }
    if (verb == "group") return group(in);
    if (verb == "restart") return restart(false);
    if (verb == "restart-with-the-store") return restart(true);
    if (verb == "stored") {
      if (open_stores_.empty()) return {"(there is nothing to store)"};
      keep_oldest();
      return step(controller::Stored{});
    }
    if (verb == "time") return time(in);
    controller::Link link = 0;
    in >> link;
    if (verb == "connect") {
      std::string kind;
      in >> kind;
      return connect(link, kind);
    }
    if (verb == "closed") return step(controller::Closed{link});
    if (verb == "interrupted") {
      return step(controller::Interrupted{static_cast<std::int32_t>(link)});
    }
    const auto message = read(verb, in);
    EXPECT_TRUE(message.has_value()) << "no such line: " << line;
    if (!message) return {};
    std::vector<std::string> all;
    const bool is_agents = std::holds_alternative<wire::AgentState>(*message);
    // Who was not said to be connected is what it sounds like.
    if (!machine_->peers().contains(link)) all = connect(link, is_agents ? "agent" : "worker");
    for (auto& action : step(controller::Received{link, *message})) {
      all.push_back(std::move(action));
    }
    return all;
  }

  std::string state() const override {
    const auto& head = machine_->head();
    std::string text = cat("generation ", head.generation, " ", sim::name(head.stage), " at ",
                           version_text(head.version), ",");
    for (const auto& [node_id, member] : machine_->arrivals()) text += cat(" ", node_id, " here");
    for (const auto& member : machine_->members()) {
      text += cat(" ", member.seat.node_id, "#", member.seat.attempt, " ", name(member.state));
    }
    return text;
  }

 private:
  static std::optional<wire::Message> read(const std::string& verb, std::istream& in) {
    if (verb == "register") {
      wire::Register m{.job = "job", .host = "host", .pid = 0};
      in >> m.node_id >> m.incarnation >> m.attempt;
      if (std::string host; in >> host) m.host = host;
      m.memory = "memory of " + m.host;
      m.pid = static_cast<std::int64_t>(m.incarnation);
      return m;
    }
    if (verb == "put") {
      wire::Put m;
      in >> m.id >> m.key >> m.value;
      return m;
    }
    if (verb == "change") {  // id, key, value, the expected version or "any", the writer
      wire::Put m;
      std::string expected;
      in >> m.id >> m.key >> m.value >> expected >> m.writer;
      m.expected = expected == "any" ? wire::kAnyKeyVersion : std::stoull(expected);
      return m;
    }
    if (verb == "get" || verb == "get-at-once" || verb == "get-newer") {
      wire::Get m{.at_once = verb == "get-at-once"};
      in >> m.id;
      if (verb == "get-newer") in >> m.newer_than;
      for (std::string key; in >> key;) m.keys.push_back(key);
      return m;
    }
    if (verb == "agent" || verb == "another-agent") return agent_state(verb, in);
    if (verb == "heartbeat") return wire::Heartbeat{};
    if (verb == "failed") {
      return wire::Failed{{.kind = Reason::Kind::kProgram, .detail = "the loss is NaN"}};
    }
    Generation generation = 0;
    in >> generation;
    if (verb == "report") {
      const Version version = version_in(in);
      return wire::Report{generation, version, version_in(in)};
    }
    if (verb == "repaired") return wire::Repaired{generation};
    if (verb == "progress") return wire::Progress{generation, version_in(in), 0};
    if (verb == "finished") return wire::Finished{generation, version_in(in)};
    return std::nullopt;
  }

  std::vector<std::string> connect(controller::Link link, const std::string& kind) {
    auto peer = wire::PeerKind::kObserver;
    if (kind == "worker") peer = wire::PeerKind::kWorker;
    if (kind == "agent") peer = wire::PeerKind::kAgent;
    if (kind == "peer") peer = wire::PeerKind::kPeer;
    return step(controller::Connected{link, peer});
  }

  // node:incarnation:attempt:alive, or the exit code in place of "alive"; "?": not known yet.
  static wire::Message agent_state(const std::string& agent_id, std::istream& in) {
    wire::AgentState state{.job = "job", .agent_id = agent_id, .host = "host", .places = {}};
    std::string word;
    while (in >> word) {
      for (auto& c : word) c = c == ':' ? ' ' : c;
      std::istringstream parts(word);
      wire::PlaceState place;
      std::string end;
      parts >> place.node_id >> place.incarnation >> place.attempt >> end;
      place.alive = end == "alive";
      if (!place.alive && end != "?") {
        const int code = std::stoi(end);
        place.ending = code > 128 ? wire::Ending{wire::Ending::Kind::kSignalled, code - 128}
                                  : wire::Ending{wire::Ending::Kind::kExited, code};
      }
      state.places.push_back(place);
    }
    return state;
  }

  // The oldest open store is durable from now on.
  void keep_oldest() {
    const controller::Store oldest = std::move(open_stores_.front());
    open_stores_.pop_front();
    if (oldest.formation && !durable_) durable_.emplace();
    if (durable_) controller::apply(oldest, *durable_);
    for (const auto& pair : oldest.kept) durable_values_[pair.key] = pair;
    for (const auto& last : oldest.writers) durable_writers_[last.writer] = last;
    for (const auto& [number, remark] : oldest.remarks) durable_remarks_.push_back(remark);
  }

  // A standing group: N ranks, w0 to wN-1, with attempt 1 on links 1 to N, and their agent on link
  // 99. All train in generation 1 from a version.
  std::vector<std::string> group(std::istream& in) {
    in >> options_.world_size;
    const Version version = version_in(in);
    (void)restart(false);
    const auto all = [&](const auto& say) {
      for (Rank rank = 0; rank < options_.world_size; ++rank) {
        const auto link = static_cast<controller::Link>(rank) + 1;
        if (!machine_->peers().contains(link)) (void)connect(link, "worker");
        (void)step(controller::Received{link, say(rank)});
        while (!open_stores_.empty()) (void)play("stored");
      }
    };
    std::string places;
    for (Rank rank = 0; rank < options_.world_size; ++rank) {
      places += cat(" w", rank, ":", 10 * (rank + 1) + 1, ":1:alive");
    }
    (void)play(cat("agent 99", places));
    all([](Rank rank) {
      const auto incarnation = static_cast<Incarnation>(10 * (rank + 1) + 1);
      return wire::Register{.job = "job",
                            .node_id = cat("w", rank),
                            .incarnation = incarnation,
                            .attempt = 1,
                            .host = "host",
                            .pid = static_cast<std::int64_t>(incarnation),
                            .memory = "memory of host"};
    });
    all([&](Rank) { return wire::Report{1, version, version}; });
    return {};
  }

  std::vector<std::string> restart(bool with_store) {
    while (with_store && !open_stores_.empty()) keep_oldest();
    open_stores_.clear();
    machine_.emplace(options_, durable_);
    controller::Started started;
    for (const auto& [key, pair] : durable_values_) started.kept.push_back(pair);
    for (const auto& [writer, last] : durable_writers_) started.writers.push_back(last);
    started.remarks = durable_remarks_;
    return step(std::move(started));
  }

  std::vector<std::string> time(std::istream& in) {
    std::int64_t seconds = 0;
    in >> seconds;
    const Instant end = std::chrono::seconds(seconds);
    std::vector<std::string> all;
    for (auto at = machine_->deadline(); at && *at <= end; at = machine_->deadline()) {
      now_ = std::max(now_, *at);
      for (auto& action : step(controller::TimePassed{})) all.push_back(std::move(action));
    }
    now_ = end;
    return all;
  }

  std::vector<std::string> step(const controller::Event& event) {
    std::vector<std::string> all;
    for (const auto& action : machine_->step(now_, event)) {
      if (const auto* store = std::get_if<controller::Store>(&action)) {
        open_stores_.push_back(*store);
      }
      all.push_back(sim::to_words(action) + value_in(action));
    }
    return all;
  }

  // The value that a Got brings, which its words leave out.
  static std::string value_in(const controller::Action& action) {
    const auto* send = std::get_if<controller::Send>(&action);
    const auto* got = send == nullptr ? nullptr : std::get_if<wire::Got>(&send->message);
    return got != nullptr && got->found ? " = " + got->value : "";
  }

  controller::Options options_{.job = "job",
                               .run_id = 7,
                               .world_size = 2,
                               .topology_timeout = std::chrono::seconds(60),
                               .lease = std::chrono::seconds(30),
                               .replacement_timeout = std::chrono::seconds(120)};
  std::optional<controller::Machine> machine_;
  std::optional<wire::Formation> durable_;
  std::map<std::string, wire::KeyValue> durable_values_;
  std::map<std::uint64_t, wire::Writer> durable_writers_;
  std::vector<wire::Remarked> durable_remarks_;
  std::deque<controller::Store> open_stores_;  // Handed out, not answered; the oldest first.
  Instant now_{};
};

}  // namespace

std::unique_ptr<Player> controller_player() {
  return std::make_unique<ControllerPlayer>();
}

Version version_in(std::istream& in) {
  std::string word;
  in >> word;
  return word == "nothing" ? kNoVersion : std::stoull(word);
}

std::string version_text(Version version) {
  return version == kNoVersion ? "nothing" : cat(version);
}

}  // namespace holdfast::transcripts
