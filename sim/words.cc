// Turns the machines' actions and messages into words.
#include "sim/words.h"

#include "base/prng.h"
#include "base/text.h"
#include "wire/codec.h"
#include "wording/reasons.h"

namespace holdfast::sim {
namespace {

using wording::in_words;

template <class... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Match(Cases...) -> Match<Cases...>;

std::string version(Version version) {
  return version == kNoVersion ? "nothing" : cat("version ", version);
}

std::string places(const wire::AgentState& state) {
  std::string text;
  for (const auto& place : state.places) {
    text += cat(" [", place.node_id, " attempt ", place.attempt,
                place.alive ? " alive" : cat(" ", in_words(place.ending)), "]");
  }
  for (const auto& rank : state.standing) {
    text += cat(", ", rank.node_id, " stands at operation ", rank.operations);
  }
  return text;
}

std::string in_roster(const wire::Seat& seat) {
  return cat(" ", seat.node_id, "#", seat.attempt,
             seat.finished ? cat(" finished at ", version(seat.version)) : "");
}

std::string note_kind(controller::Note::Kind kind) {
  switch (kind) {
    case controller::Note::Kind::kFault:
      return "fault";
    case controller::Note::Kind::kStop:
      return "stop";
    case controller::Note::Kind::kPlan:
      return "plan";
    case controller::Note::Kind::kRepaired:
      return "repaired";
    case controller::Note::Kind::kResume:
      return "resume";
    case controller::Note::Kind::kRecovered:
      return "recovered";
    case controller::Note::Kind::kHow:
      return "how";
    case controller::Note::Kind::kRefused:
      return "refused";
    case controller::Note::Kind::kTaken:
      return "taken";
    case controller::Note::Kind::kHeldUp:
      return "held up";
    case controller::Note::Kind::kRemark:
      return "remark";
    case controller::Note::Kind::kTookOver:
      return "took over";
  }
  return "?";
}

std::string in_words(const std::vector<wire::HeldCopy>& held) {
  std::string text;
  for (const auto& copy : held) {
    append(text, cat(", for rank ", copy.ward, " ", version(copy.version), " staged ",
                     version(copy.staged)));
  }
  return text;
}

std::string order(const wire::Order& order) {
  const auto at = [](const wire::Location& source) {
    return cat("rank ", source.holder, source.host.empty() ? "" : cat(" on ", source.host));
  };
  if (order.act == wire::Act::kLoad) return cat("load ", order.snapshot);
  if (order.act != wire::Act::kReceive) return wire::name(order.act);
  const bool apart = order.private_source.holder != kNoRank;
  return cat(wire::name(order.act), " from ", at(order.source),
             apart ? cat(", private parts from ", at(order.private_source)) : "");
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += cat(' ', name);
  return text;
}

std::string role(agent::Role role) {
  if (role == agent::Role::kScheduler) return "scheduler";
  return role == agent::Role::kWorker ? "worker" : "spare";
}

std::string put_word(const wire::Put& m) {
  if (m.writer == 0) return cat("Put ", m.key);
  if (m.expected == wire::kAnyKeyVersion) return cat("Put ", m.key, ", whatever it is");
  return cat("Put ", m.key, " in place of version ", m.expected);
}

std::string snapshot_word(const wire::Snapshot& m) {
  constexpr const char* kWords[] = {"take",   "taken",  "write",      "written", "name", "named",
                                    "missed", "failed", "unreadable", "ask",     "stop"};
  std::string text =
      cat("Snapshot of ", version(m.version), ": ", kWords[static_cast<std::size_t>(m.word)]);
  for (const auto& file : m.files) text += cat(' ', file.rank);
  for (const auto& name : m.old) text += cat(", without ", name);
  return text + (m.why.empty() ? "" : ", " + m.why);
}

std::string pause_word(const wire::Pause& m) {
  if (m.pauses == 0) return cat("Pause ", m.on ? "on" : "off");
  return cat("Pause: stands still after ", version(m.version));
}

}  // namespace

const char* name(wire::Stage stage) {
  switch (stage) {
    case wire::Stage::kAssembling:
      return "assembling";
    case wire::Stage::kStopping:
      return "stopping";
    case wire::Stage::kRepairing:
      return "repairing";
    case wire::Stage::kRunning:
      return "running";
    case wire::Stage::kEnded:
      return "ended";
  }
  return "?";
}

std::string to_words(const wire::Formation& formation) {
  std::string text = cat("generation ", formation.generation, " ", name(formation.stage));
  if (formation.stage == wire::Stage::kRunning) text += cat(" at ", version(formation.version));
  if (formation.reached > formation.version)
    text += cat(", ", version(formation.reached), " was reached");
  for (const auto& seat : formation.roster) text += in_roster(seat);
  return text;
}

std::string to_words(const wire::Message& message) {
  return std::visit(
      Match{
          [](const wire::Register& m) {
            return cat("Register ", m.node_id, " attempt ", m.attempt, m.serves ? ", serves" : "");
          },
          [](const wire::Assignment& m) {
            const bool acts = m.order.act != wire::Act::kKeep;
            return cat(
                "Assignment rank ", m.rank, " of ", m.world_size, ": generation ", m.generation,
                " ", name(m.stage),
                m.stage == wire::Stage::kRunning || acts ? cat(" at ", version(m.version)) : "",
                acts ? cat(", ", order(m.order)) : "",
                m.ended == kNoRank ? "" : cat(" without rank ", m.ended),
                m.pauses % 2 == 1 ? ", paused" : "", ": ", in_words(m.cause));
          },
          [](const wire::Refused& m) { return cat("Refused: ", in_words(m.reason)); },
          [](const wire::Waiting& m) { return cat("Waiting: ", in_words(m.reason)); },
          [](const wire::AgentState& m) { return cat("AgentState", places(m)); },
          [](const wire::Evict& m) {
            return cat("Evict ", m.node_id, m.is_hung ? ", which hangs" : "");
          },
          [](const wire::Inspect& m) { return cat("Inspect ", m.node_id); },
          [](const wire::Report& m) {
            return cat("Report generation ", m.generation, " ", version(m.version), " staged ",
                       version(m.staged), m.private_is_own ? ", private parts of its own" : "",
                       m.has_lost_shared || m.has_lost_private ? ", lost pages" : "",
                       in_words(m.held));
          },
          [](const wire::Repaired& m) { return cat("Repaired generation ", m.generation); },
          [](const wire::Progress& m) {
            return cat("Progress generation ", m.generation, " ", version(m.version));
          },
          [](const wire::JobProgress& m) { return cat("JobProgress ", version(m.version)); },
          [](const wire::Finished& m) { return cat("Finished ", version(m.version)); },
          [](const wire::Failed& m) { return cat("Failed: ", in_words(m.reason)); },
          [](const wire::JobEnded& m) {
            return cat("JobEnded ", m.success ? "well" : "badly", ": ", in_words(m.reason));
          },
          [](const auto& m) { return std::string(wire::kind_name(wire::kind_of(m))); },
          [](const wire::Put& m) { return put_word(m); },
          [](const wire::Kept& m) {
            if (m.reason != wire::Reason{}) return cat("not Kept: ", in_words(m.reason));
            return cat(m.is_set ? "Kept" : "Kept nothing", ", version ", m.version);
          },
          [](const wire::Get& m) {
            std::string text = m.at_once ? "Get at once" : "Get";
            for (const auto& key : m.keys) text += cat(' ', key);
            if (m.newer_than != 0) text += cat(" newer than version ", m.newer_than);
            return text;
          },
          [](const wire::Places& m) {
            return cat("Places", listed(m.node_ids), m.drains ? ", and no more" : "");
          },
          [](const wire::Move& m) {
            return cat("Move from ", m.from, m.to.empty() ? "" : cat(" to ", m.to),
                       m.drains ? ", for good" : "");
          },
          [](const wire::Moved& m) { return cat("Moved: ", in_words(m.reason)); },
          [](const wire::Addresses& m) { return cat("Addresses of ", m.at.size(), " ranks"); },
          [](const wire::GroupLost& m) { return cat("GroupLost ", m.generation, ' ', m.pages); },
          [](const wire::Remark& m) { return cat("Remark: ", in_words(m.reason)); },
          [](const wire::Snapshot& m) { return snapshot_word(m); },
          [](const wire::Pause& m) { return pause_word(m); },
          [](const wire::Got& m) {
            return m.found ? cat("Got ", m.key, ", version ", m.version) : std::string("Got none");
          },
      },
      message);
}

std::string to_words(const controller::Action& action) {
  return std::visit(
      Match{
          [](const controller::Store& a) {
            std::string text = "store";
            if (a.formation) text += cat(' ', to_words(*a.formation));
            for (const auto& [rank, seat] : a.seats) text += in_roster(seat);
            for (const auto& pair : a.kept) {
              text += cat(" the value of ", pair.key);
              if (pair.version > 1) text += cat(", version ", pair.version);
            }
            for (const auto& [number, remark] : a.remarks) text += cat(" remark ", number);
            return text;
          },
          [](const controller::Send& a) {
            return cat("to connection ", a.link, ": ", to_words(a.message));
          },
          [](const controller::Answer& a) {
            return cat("tell connection ", a.link, " the value of ", a.found->key, ", version ",
                       a.found->version);
          },
          [](const controller::Close& a) { return cat("close connection ", a.link); },
          [](const controller::Probe& a) { return cat("probe ", a.node_id, " at ", a.endpoint); },
          [](const controller::Note& a) {
            const auto& seeker = a.seeker;
            const auto who = cat(" for ", seeker.node_id, " (process ", seeker.pid, ")");
            return cat("note ", note_kind(a.kind), seeker.node_id.empty() ? "" : who,
                       " generation ", a.generation, ": ", in_words(a.reason));
          },
          [](const controller::End& a) {
            return cat("end ", a.success ? "well" : "badly", ": ", in_words(a.reason));
          },
          [](const controller::Leave& a) {
            return std::string(a.lingers ? "leave, for latecomers a little later" : "leave");
          },
      },
      action);
}

std::string to_words(const member::Action& action) {
  return std::visit(
      Match{
          [](const member::Send& a) { return cat("says ", to_words(a.message)); },
          [](const member::RankGiven& a) { return cat("is rank ", a.rank, " of ", a.world_size); },
          [](const Assigned& a) { return cat("assigned: ", to_words(a.part)); },
          [](const member::AwaitAddresses&) { return std::string("look for addresses"); },
          [](const member::Released&) { return std::string("released"); },
          [](const member::Say& a) { return cat("to the user: ", in_words(a.reason)); },
          [](const member::BeDrilled&) { return std::string("be drilled"); },
          [](const member::TakeSnapshot& a) {
            return cat("take a snapshot of ", version(a.version), " in ", a.generation);
          },
          [](const member::GiveUp& a) {
            return cat("give up ", a.success ? "well" : "badly", ": ", in_words(a.reason));
          },
      },
      action);
}

std::string to_words(const trainer::Return& result) {
  using What = trainer::Return::What;
  switch (result.what) {
    case What::kJoined:
      return "return: joined";
    case What::kBegun:
      return "return: begun";
    case What::kBegunAnew:
      return "return: begun in a new group";
    case What::kTooLate:
      return cat("return: too late, rank ", result.ended, " has ended");
    case What::kCommitted:
      return "return: committed";
    case What::kCommittedByPlan:
      return "return: committed by the plan";
    case What::kVoid:
      return "return: void";
    case What::kEnded:
      return "return: ended";
    case What::kEndUnconfirmed:
      return "return: ended, not confirmed";
    case What::kFailed:
      return cat("return: failed: ", in_words(result.reason));
    case What::kOver:
      return cat("return: the job is over: ", in_words(result.reason));
  }
  return "?";
}

std::string to_words(const trainer::Work& work) {
  return std::visit(
      Match{
          [](const trainer::Repair& w) {
            return cat("repair to ", version(w.version), ": ", order(w.order));
          },
          [](const trainer::Unstage&) { return std::string("unstage"); },
          [](const trainer::JoinGroup& w) { return cat("join the group of ", w.generation); },
          [](const trainer::LeaveGroup&) { return std::string("leave the group"); },
          [](const trainer::AwaitSums&) { return std::string("await the sums"); },
          [](const trainer::Stage& w) { return cat("stage ", version(w.version)); },
          [](const trainer::ExchangeCopies& w) {
            return cat("exchange private parts of ", version(w.version));
          },
          [](const trainer::Hold&) { return std::string("wait, because the job is paused"); },
          [](const trainer::Arrive&) { return std::string("arrive at the commit barrier"); },
          [](const trainer::Update& w) {
            return std::string(w.keeps ? "update, and copy it for a snapshot" : "update");
          },
          [](const trainer::Return& w) { return to_words(w); },
      },
      work);
}

std::string to_words(const trainer::Action& action) {
  return std::visit(
      Match{
          [](const trainer::Do& a) { return cat("do: ", to_words(a.work)); },
          [](const trainer::Say& a) { return cat("says ", to_words(a.message)); },
          [](const trainer::StopGroup& a) { return cat("stop the group of ", a.generation); },
          [](const trainer::StopRepair&) { return std::string("stop the repair"); },
          [](const trainer::Resume& a) {
            return cat("resume in generation ", a.generation, " at ", version(a.version));
          },
          [](const trainer::NoteStopped& a) { return cat("stopped in generation ", a.generation); },
          [](const trainer::NoteParked& a) {
            return cat("parked with ", version(a.holding.version), " staged ",
                       version(a.holding.staged), in_words(a.holding.held));
          },
      },
      action);
}

std::string to_words(const agent::Action& action) {
  return std::visit(
      Match{
          [](const agent::Spawn& a) {
            return cat("spawn process ", a.process, " as ", role(a.role), " ", a.node_id,
                       " attempt ", a.attempt, a.serves ? ", serves" : "");
          },
          [](const agent::Promote& a) {
            return cat("promote process ", a.process, " to ", a.node_id, " attempt ", a.attempt);
          },
          [](const agent::Send& a) { return cat("says ", to_words(a.message)); },
          [](const agent::Kill& a) {
            return cat("kill process ", a.process, a.gently ? " gently" : "");
          },
          [](const agent::WantGrace&) { return std::string("want grace"); },
          [](const agent::WantPause& a) {
            return cat("want a pause of ", a.how_long.count() / 1'000'000, " ms");
          },
          [](const agent::LeaveAddresses& a) {
            return cat("leave ", to_words(wire::Message(a.addresses)));
          },
          [](const agent::Say& a) { return cat("to the user: ", in_words(a.reason)); },
          [](const agent::Inspect& a) { return cat("inspect process ", a.process); },
          [](const agent::EndHost& a) {
            return std::string(a.stops ? "stop this host" : "kill this host");
          },
          [](const agent::DoSnapshot& a) { return cat("do: ", to_words(wire::Message(a.order))); },
          [](const agent::Log& a) { return cat("to a log: ", in_words(a.reason)); },
          [](const agent::Stay& a) {
            return cat("stays for ", a.at_most.count() / 1'000'000, " ms with code ", a.code);
          },
          [](const agent::Exit& a) {
            return cat("exit with code ", a.code, ": ", in_words(a.reason));
          },
      },
      action);
}

namespace {

std::uint64_t print_of(const std::string& text) {
  std::uint64_t print = text.size();
  for (const char c : text) print = derive(print, static_cast<unsigned char>(c));
  return print;
}

}  // namespace

std::uint64_t print_of(const wire::Message& message) {
  const auto kind = static_cast<std::uint64_t>(message.index());
  return std::visit(
      Match{
          [&](const wire::Register& m) { return derive(kind, m.incarnation, m.attempt); },
          [&](const wire::Assignment& m) {
            return derive(kind, m.rank, m.generation, m.version,
                          static_cast<std::uint64_t>(m.stage),
                          static_cast<std::uint64_t>(m.order.act), m.order.source.holder, m.ended,
                          static_cast<std::uint64_t>(m.cause.kind));
          },
          [&](const wire::Report& m) {
            return derive(kind, m.generation, m.version, m.staged, m.private_is_own);
          },
          [&](const wire::Repaired& m) { return derive(kind, m.generation); },
          [&](const wire::Progress& m) { return derive(kind, m.generation, m.version); },
          [&](const wire::Finished& m) { return derive(kind, m.generation, m.version); },
          [&](const wire::Put& m) { return derive(kind, m.id, print_of(m.value)); },
          [&](const wire::Get& m) { return derive(kind, m.id, m.keys.size()); },
          [&](const wire::Got& m) { return derive(kind, m.id, print_of(m.value)); },
          [&](const auto&) { return derive(kind); },
      },
      message);
}

}  // namespace holdfast::sim
