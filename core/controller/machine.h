// The scheduler's decisions: who has which rank, and what all do after a fault.
//
// Pure: no clock, no I/O, no threads, no randomness, no unordered containers. The same state and
// the same event give the same actions. What it says to others it says only once the record behind
// it is durable (Outbox). Why it is right: docs/protocol/recovery.md.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "core/address_book.h"
#include "core/controller/agent_directory.h"
#include "core/controller/belief.h"
#include "core/controller/events.h"
#include "core/controller/key_values.h"
#include "core/controller/member.h"
#include "core/controller/outbox.h"
#include "core/controller/roster.h"
#include "core/planner/planner.h"
#include "core/table.h"
#include "wire/formation.h"
#include "wire/messages.h"

namespace holdfast::controller {

struct Options {
  std::string job;
  std::uint64_t run_id = 0;  // For a new record: 64 random bits.
  std::int32_t world_size = 0;
  Duration topology_timeout{};     // Until all processes have come.
  Duration lease{};                // Silence after which a process counts as lost.
  Duration replacement_timeout{};  // How long a lost rank is waited for.
  Duration host_silence{};         // Of several hosts: the least after which one counts as lost.
  bool by_agent = false;           // An agent has started this scheduler, and would start another.
  std::string own_host;            // As in Register.
  std::string boot;                // The memory (Register) of whoever has our clock begins so.
  std::string own_agent;           // How the id of that agent begins; empty: any agent may be it.
  std::string suspect_host;        // Its scheduler has lost its lease: it may be lost as well.
  bool comes_back = false;         // Somebody starts it again, after whatever end it may find.
  Duration agent_patience{};       // How long that agent is waited for, after the end.
};

// What leads a job from one wire::Stage to the next.
enum class StageEvent : std::uint8_t {
  kBegun,     // A new generation.
  kPlanned,   // All have reported: it is known from which version all go on.
  kRepaired,  // All hold that version.
  kOver,      // The job has ended, well or not.
};
[[nodiscard]] const char* name(StageEvent event);
// {stage × event}; see core/table.h.
[[nodiscard]] std::span<const Transition<wire::Stage>> stage_transitions();

// What is at the other end of a connection.
struct Peer {
  wire::PeerKind kind = wire::PeerKind::kWorker;
  bool dismissed = false;       // Its connection is being closed: nothing is heard of it any more.
  bool is_told_end = false;     // Of the job.
  std::string node_id;          // Of the process that has registered here; empty: none has,
  Incarnation incarnation = 0;  // as is this.
  bool has_seat = false;        // What it says is the word of a seat,
  Rank rank = kNoRank;          // of this one; kNoRank: the ranks are not given yet.
};

inline constexpr std::size_t kMaxNameBytes = 1024;   // Of a node, a host, a memory, an agent.
inline constexpr std::int64_t kMaxGroupsLost = 20;   // On end, without a death and without a step.
inline constexpr std::size_t kMaxSparesMore = 256;   // Of an agent, than the job has places.
inline constexpr std::size_t kMaxTextBytes = 65536;  // Of the words in which somebody fails.

class Machine {
 public:
  Machine(Options options, std::optional<wire::Formation> stored);

  [[nodiscard]] Actions step(Instant now, const Event& event);

  // When TimePassed is wanted at the latest.
  [[nodiscard]] std::optional<Instant> deadline() const;

  [[nodiscard]] wire::Formation formation() const;
  [[nodiscard]] wire::Stage stage() const { return formation_.stage; }
  [[nodiscard]] Generation generation() const { return formation_.generation; }
  [[nodiscard]] const wire::Formation& head() const { return formation_; }  // Without its roster.
  [[nodiscard]] const KeyValues& key_values() const { return key_values_; }
  [[nodiscard]] bool assembled() const { return roster_.assembled(); }
  [[nodiscard]] const std::vector<Member>& members() const { return roster_.members(); }
  [[nodiscard]] const Member* find(const std::string& node_id) const {
    return roster_.find(node_id);
  }
  [[nodiscard]] const std::map<Link, Peer>& peers() const { return peers_; }
  [[nodiscard]] const std::map<Link, Agent>& agents() const { return agents_.here(); }
  [[nodiscard]] bool waits_for_place(const std::string& node_id, std::int64_t pid) const;
  // How many members it has looked at so far: its work, as far as it grows with the world.
  [[nodiscard]] std::uint64_t looks() const { return roster_.looks(); }
  // Who is here before the ranks are given, by node id.
  [[nodiscard]] const std::map<std::string, Member>& arrivals() const { return roster_.arrivals(); }

 private:
  void on(const Started& e);
  void on(const Connected& e);
  void on(const Received& e);
  void on(const Unreadable& e);
  void on(const Closed& e);
  void on(const ProvenDead& e);
  void on(const NotThere& e);
  void on(const Stored&);
  void on(const TimePassed&);
  void on(const Interrupted& e);

  void receive(Link link, const wire::Register& m);
  void receive(Link link, const wire::AgentState& m);
  void receive(Link link, const wire::Report& m);
  void receive(Link link, const wire::Repaired& m);
  void receive(Link link, const wire::Progress& m);
  void receive(Link link, const wire::GroupLost& m);
  void receive(Link link, const wire::Finished& m);
  void receive(Link link, const wire::Failed& m);
  void receive(Link link, const wire::Move& m);
  void receive(Link link, const wire::Put& m);
  void receive(Link link, const wire::Get& m);
  void receive(Link link, const wire::AskAddresses&);
  template <class Other>
  void receive(Link, const Other&) {
  }  // Heartbeats are heard in on(Received); the rest is nonsense.

  // Links (links.cc)
  void refuse(Link link, wire::Reason reason);
  void reject(Link link, wire::Reason reason);
  void reject_word(Link link, const wire::Message& message);
  void dismiss(Link link);
  void tell_end(Link link);
  void tell_end_to_all();
  [[nodiscard]] static std::optional<wire::Reason> excess(
      std::initializer_list<const std::string*> names);

  // Membership (membership.cc)
  // Whether a process may have a place that another has, or had.
  struct Verdict {
    enum class Kind : std::uint8_t { kTakes, kWaits, kNever };
    Kind kind = Kind::kTakes;
    wire::Reason reason;
  };
  void admit_early(Link link, const wire::Register& m);
  void maybe_tell_arrivals();
  void admit(Link link, Rank rank, const wire::Register& m);
  [[nodiscard]] Verdict verdict_on(Rank rank, const wire::Register& m) const;
  [[nodiscard]] Verdict early_verdict_on(const wire::Register& m) const;
  void turn_away(Link link, const wire::Register& m, const Verdict& verdict);
  [[nodiscard]] wire::Reason leased(Rank rank) const;
  void note_taken(const wire::Register& m, const wire::Reason& reason);
  void keep_waiting(Link link, const wire::Register& m, wire::Reason reason);
  void stop_waiting(Link link);
  void answer_waiting(const std::string& node_id);
  [[nodiscard]] bool may_assemble() const;
  void assemble();
  void take_over(Rank rank, Link link, const wire::Register& m);
  void welcome(Rank rank);
  void died(const Member& member, const wire::Ending& ending, bool in_good_order,
            std::uint64_t detected_ns);
  [[nodiscard]] std::optional<wire::Reason> elsewhere(const wire::Register& m) const;
  [[nodiscard]] std::vector<PeerPlace> peer_places() const;
  void refresh_book();

  // Seats (seats.cc)
  void check_leases();
  void lose(const Member& member);
  [[nodiscard]] std::vector<wire::Awaited> awaited() const;
  [[nodiscard]] bool waits_for_replacement() const;
  [[nodiscard]] Rank rank_at(Link link) const;
  [[nodiscard]] const Member* member_on(Link link);
  void attach(const Member& member, Link link, const wire::Register& m);
  void detach(const Member& member);

  // Agents (agents.cc)
  [[nodiscard]] static std::optional<wire::Reason> too_much(const wire::AgentState& m,
                                                            std::size_t places);
  void forget_agent(Link link);
  void forget_arrival(const std::string& node_id);
  void take_up(Link link, const std::map<std::string, PlaceWord>& former);
  void answer_askers();
  void tell_who_has_them(Link link);
  void apply_word(const wire::PlaceState& place);
  void apply_word_on(const std::string& node_id);
  void tell_how(const Member& member, const wire::PlaceState& place);
  void evict(const Member& member);
  [[nodiscard]] bool is_own_agent(const std::string& agent_id) const;
  [[nodiscard]] bool speaks_for_a_place(Link link) const;

  // Hosts (hosts.cc)
  [[nodiscard]] bool watches_hosts() const;
  void hear_agent(Agent& agent);
  void host_speaks(const Member& member);
  void hang_up(const Member& member);
  [[nodiscard]] bool has_hung_up(const Agent& agent) const;
  [[nodiscard]] bool is_proven_lost(const Agent& agent) const;
  void ask(Agent& agent);
  [[nodiscard]] Duration silence_of(const Agent& agent) const;
  [[nodiscard]] bool is_silent_for_long(Agent& agent);
  void miss_agent(Agent agent);
  void miss_all_agents();
  void look_at_hosts(Instant when);
  void check_hosts();
  [[nodiscard]] bool is_here(const Agent& agent) const;
  void check_host(Agent& agent, std::set<Rank>& lost);
  void tell_lost(const std::set<Rank>& ranks, const std::string& heir);

  // Whose places are whose (owners.cc)
  // Whether an agent may have a place that it asks for.
  enum class Right : std::uint8_t {
    kIts,     // It is the agent's, from now on if not before.
    kNotYet,  // It is that of another one, which may be lost.
    kLost,    // It was granted to another one since: the agent drops it.
  };
  [[nodiscard]] Right right_to(const std::string& node_id, const Agent& asker) const;
  [[nodiscard]] const Agent* owner_here(const std::string& node_id) const;
  void own(Rank rank, const std::string& agent_id);
  void retire(const Member& member);
  void free_places(const std::string& agent_id, bool free);
  void tell_owners();
  void tell_places(Link link, Agent& agent);
  [[nodiscard]] std::vector<std::string> lacking(const Agent& agent) const;
  void hand_over(const std::set<Rank>& ranks, Link heir);
  [[nodiscard]] std::map<std::string, std::set<Rank>> free_by_memory(
      const std::set<Rank>& ranks) const;
  void assign_free_places();
  [[nodiscard]] Link host_for(std::size_t places, const std::string& not_on,
                              const std::string& only_on) const;
  struct Transfer {  // Other hosts shall have the places of one that lives.
    std::set<Rank> ranks;
    std::set<std::string> agents;  // That have them now.
    Link heir = 0;                 // An agent.
    Link asker = 0;                // An observer; 0: nobody has asked.
    bool drains = false;
    wire::Reason what;  // As the generation's cause.
  };
  [[nodiscard]] std::optional<wire::Reason> plan_move(const wire::Move& m,
                                                      Transfer& transfer) const;
  [[nodiscard]] bool takes(const Agent& agent, std::size_t places) const;
  [[nodiscard]] bool is_drained(const std::string& agent_id) const;
  void drain(const Transfer& transfer);
  void answer_transfer(const Transfer& transfer, wire::Reason reason);
  void begin_transfer();
  [[nodiscard]] bool carry_out_transfer(const std::set<Rank>& disbelieved);
  void maybe_balance();

  // Recovery (recovery.cc)
  void enter(StageEvent event);
  void begin(wire::Reason cause);
  void rank_lost(Rank rank, const wire::Reason& cause, std::uint64_t detected_ns);
  [[nodiscard]] Said said_by(Rank rank, const wire::Report& report) const;
  void disbelieve(Rank rank, Version said, Version possible);
  [[nodiscard]] bool disbelieve_some(std::set<Rank>& ended);
  using HeldCopies = std::map<Rank, std::vector<planner::Copy>>;
  [[nodiscard]] HeldCopies held_copies() const;
  static void list(Rank rank, const wire::Report& report, const HeldCopies& held,
                   planner::Table& table);
  [[nodiscard]] planner::Table table(const std::set<Rank>& disbelieved,
                                     const std::set<Rank>& without) const;
  void carry_out(const planner::Plan& plan);
  void give(const planner::Order& order);
  [[nodiscard]] wire::Location location_of(Rank holder, Rank asker);
  void maybe_plan();
  void next_round();
  void resume();
  void assign(Rank rank);
  void proven(Rank rank, Version version);
  void reach(Version version);
  void maybe_tell_progress();
  [[nodiscard]] bool has_progress_to_tell() const;
  void maybe_all_left();
  void maybe_nobody_came();
  void end(bool success, wire::Reason reason);
  void wait_for_agent();
  void leave();
  [[nodiscard]] Rank ended_rank() const;

  void emit(Action action) { outbox_.add(std::move(action)); }
  [[nodiscard]] std::size_t unanswered(Link link) const;
  void note(Note::Kind kind, Rank rank, const wire::Reason& reason, std::uint64_t detected_ns = 0);
  void store();
  void send(Link link, wire::Message message);
  void tell_agents(const wire::Message& message);

  Options options_;
  wire::Formation formation_;  // But for its roster, which is in members_.
  Roster roster_;
  bool arrivals_are_told_ = true;  // How many they are.
  Instant arrivals_next_{};        // They are not told before.
  AddressBook book_;               // Which the agents were told of last.
  std::map<Link, Peer> peers_;
  std::vector<Link> dismissed_;  // By the event that is being handled.
  // Processes that ask for a place which they can not have yet; there may be several for one.
  std::map<Link, wire::Register> pending_;
  std::map<std::string, std::set<Link>> waiting_;  // The same, by node id.
  AgentDirectory agents_;
  bool owners_have_changed_ = false;  // Since the askers were answered.
  Instant askers_next_{};             // Before the ranks are given: when they are answered again.
  std::vector<std::pair<Link, Rank>> retired_;  // Their processes are to hear it.
  std::optional<Transfer> transfer_;
  // Agents whose places went to others, or that were to have those of others: nothing moves to
  // them.
  std::set<std::string> emptied_;
  bool has_proven_ = false;                  // Some generation, by a step of all.
  std::optional<Instant> hosts_look_at_;     // When some host may count as lost.
  std::map<std::string, std::string> lost_;  // Hosts, by agent, whose places are free.
  KeyValues key_values_;
  std::vector<wire::KeyValue> keeps_;     // To be stored with the next formation.
  bool roster_stored_ = false;            // Or on its way to it.
  std::map<Rank, wire::Report> reports_;  // Of the generation being formed.
  int round_ = 0;             // Of the orders: 1 for each its own arena, 2 copies from others.
  std::set<Rank> repairing_;  // Of this round, not yet repaired.
  std::set<Rank> moved_;  // Have reported in this generation, and are on another host than before.
  std::set<Rank> unproven_;       // Have made no step yet in the running generation.
  Rank ended_ = kNoRank;          // As of wire::Assignment, for the running generation.
  std::int64_t groups_lost_ = 0;  // Without a death, since all have made a step.
  std::optional<std::pair<Generation, Version>> progress_told_;  // To all agents that are here.
  Instant progress_next_{};           // Agents are not told of progress before.
  double loss_ = 0;                   // The newest that was heard of.
  Instant all_are_back_{};            // After a restart, also who has no rank.
  std::optional<Instant> leaves_at_;  // At the latest, where an agent is waited for.
  bool left_ = false;
  mutable std::string unspoken_;  // Of the arrivals, one of which no agent had spoken yet.
  Instant now_{};
  Instant started_{};
  Instant waiting_since_{};  // Since when ranks are stopped.
  Outbox outbox_;
};

}  // namespace holdfast::controller
