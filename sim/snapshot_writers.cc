#include "sim/snapshot_writers.h"

#include <array>
#include <utility>

#include "base/text.h"

namespace holdfast::sim {
namespace {

using wire::SnapshotWord;

constexpr std::uint32_t kFailureRarity = 24;

wire::Snapshot failed(wire::Snapshot order, std::string why) {
  order.word = SnapshotWord::kFailed;
  order.files.clear();
  order.old.clear();
  order.why = std::move(why);
  return order;
}

}  // namespace

std::optional<wire::Snapshot> SnapshotWriters::begin(Index agent, const wire::Snapshot& order) {
  auto& writing = job_.agents[agent].writing;
  if (writing) return failed(order, "this host still writes the one before");
  constexpr std::array kTakes = {Duration{}, Duration{1'000'000}, Duration{6'000'000},
                                 Duration{40'000'000}, Duration{400'000'000}};
  writing.emplace(Writing{order, job_.now + kTakes[job_.choices.pick(kTakes.size(), 2)]});
  return std::nullopt;
}

void SnapshotWriters::list(std::vector<Transition>& possible) const {
  for (Index a = 0; a < job_.agents.size(); ++a) {
    const AgentProcess& agent = job_.agents[a];
    if (!agent.runs() || !agent.writing || agent.writing->until > job_.now) continue;
    possible.push_back({Transition::Kind::kSnapshotDone, a, a});
  }
}

wire::Snapshot SnapshotWriters::end(Index agent) {
  wire::Snapshot order = std::exchange(job_.agents[agent].writing, std::nullopt)->order;
  const bool writes = order.word == SnapshotWord::kWrite;
  if (job_.choices.pick(2, kFailureRarity) == 1) {
    if (writes) (void)write(agent, order, job_.choices.pick(2));
    return failed(std::move(order), "the disk is full");
  }
  if (writes) {
    if (auto why = write(agent, order, order.files.size()); !why.empty()) {
      return failed(std::move(order), std::move(why));
    }
    order.word = SnapshotWord::kWritten;
    return order;
  }
  name(order, true);
  order.word = SnapshotWord::kNamed;
  order.files.clear();
  order.old.clear();
  return order;
}

void SnapshotWriters::cut_short(Index agent) {
  auto writing = std::exchange(job_.agents[agent].writing, std::nullopt);
  if (!writing) return;
  wire::Snapshot& order = writing->order;
  if (order.word == SnapshotWord::kWrite) {
    const auto files = static_cast<std::uint32_t>(order.files.size());
    (void)write(agent, order, job_.choices.pick(files + 1));
  } else if (const auto how_far = job_.choices.pick(3); how_far > 0) {
    name(order, how_far == 2);
  }
}

// Writes the parts of the first so many files. Returns why it could not.
std::string SnapshotWriters::write(Index agent, wire::Snapshot& order, std::size_t files) {
  const Index host = job_.setup.hosts ? agent : 0;
  for (std::size_t i = 0; i < files && i < order.files.size(); ++i) {
    wire::SnapshotFile& file = order.files[i];
    const auto part = memory_.take_part(host, file.rank, order.version);
    if (!part) return cat("the part of rank ", file.rank, " is not there");
    disk_.write(order.name, file.rank, *part);
    file.bytes = 8;
    file.digest = part->content;
  }
  return "";
}

void SnapshotWriters::name(const wire::Snapshot& order, bool removes) {
  disk_.name(order, job_.setup.ranks, job_.checkers);
  if (!removes) return;
  std::string loaded;
  if (const auto& formation = journal_.formation(); formation && formation->loads) {
    loaded = formation->orders.empty() ? "" : formation->orders.front().snapshot;
  }
  for (const auto& old : order.old) disk_.remove(old, loaded, job_.checkers);
}

}  // namespace holdfast::sim
