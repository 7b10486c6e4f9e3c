#include "runtime/worker/table_store.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "runtime/worker/fetch.h"
#include "runtime/worker/neighbours.h"
#include "runtime/worker/table_parts.h"
#include "table/arrival.h"
#include "table/saved.h"

namespace holdfast::runtime {
namespace {

// Which rows a server has follows from its number and from how many there are.
std::string tables_path(const Identity& identity, Rank rank) {
  return cat(identity.directory, "/tables-", rank - identity.world_size, "-of-", identity.servers);
}

std::string held_tables_path(const Identity& identity, Rank ward, Rank holder) {
  return cat(tables_path(identity, ward), ".held-by-", holder);
}

Result<StateFile> tables_to_send(const std::string& path, const std::vector<table::Spec>& specs,
                                 Version version) {
  auto departure = table::departure(path, specs, version);
  if (!departure) return departure.error();
  auto& [file, ranges] = *departure;
  StateFile state{.file = std::move(file.file), .ranges = {}, .size = file.bytes};
  for (const auto& [offset, bytes] : ranges) state.ranges.push_back({offset, bytes});
  return state;
}

// Tables that come from another host. What they refuse once may be due to damage on the way.
class TableSink final : public StateSink {
 public:
  explicit TableSink(table::Arrival& arrival) : arrival_(arrival) {}
  [[nodiscard]] Result<std::span<std::byte>> place(const StateHead& head,
                                                   std::size_t range) override {
    std::vector<arena::Range> ranges;
    for (const auto& [offset, bytes] : head.ranges) ranges.push_back({offset, bytes});
    auto placed = arrival_.place(ranges, range);
    refused_ += placed ? 0 : 1;
    return placed;
  }
  [[nodiscard]] Status came(const StateHead&) override {
    Status ended = arrival_.end();
    refused_ += ended ? 0 : kMostRefused;
    return ended;
  }
  [[nodiscard]] bool has_refused() const override { return refused_ >= kMostRefused; }

 private:
  static constexpr int kMostRefused = 2;
  table::Arrival& arrival_;
  int refused_ = 0;
};

class TableStore final : public StateStore {
 public:
  TableStore(Worker& worker, Identity identity, std::string from, table::Tables tables)
      : worker_(worker),
        identity_(std::move(identity)),
        from_(std::move(from)),
        tables_(std::move(tables)) {
    open_held();
    worker_.neighbours().serve_state(
        [identity = identity_, specs = tables_.specs()](Rank rank, Version version) {
          const Rank me = identity.rank;
          return tables_to_send(
              rank == me ? tables_path(identity, me) : held_tables_path(identity, rank, me), specs,
              version);
        });
  }
  ~TableStore() override { worker_.neighbours().serve_state(nullptr); }

  [[nodiscard]] table::Tables& tables() { return tables_; }
  [[nodiscard]] std::vector<Kept> kept() {
    std::vector<Kept> all{{identity_.rank - identity_.world_size, &tables_}};
    for (auto& [ward, held] : held_) all.push_back({ward - identity_.world_size, &held});
    return all;
  }

  [[nodiscard]] Holding holding() const override {
    Holding holding{tables_.version(), tables_.staged(), true, {}};
    for (const auto& [ward, held] : held_) {
      holding.held.push_back({ward, held.version(), held.staged()});
    }
    return holding;
  }
  [[nodiscard]] Status begin(const arena::Position& position) override {
    if (!tables_.fresh()) return {};
    if (!from_.empty()) {
      const Rank me = identity_.rank - identity_.world_size;
      const auto mine = [me, servers = identity_.servers](std::uint64_t key) {
        return server_of(key, servers) == me;
      };
      return table::load(tables_, from_, mine, position);
    }
    tables_.begin(0, position);
    return {};
  }
  [[nodiscard]] Losses look_for_losses(bool) override { return {}; }
  [[nodiscard]] Result<Received> receive(const wire::Order& order, Version version) override {
    const wire::Location& held = order.private_source;
    if (held.holder == kNoRank) {
      return Error{Blame::kWorld, cat("the tables of rank ", identity_.rank, " in version ",
                                      version, " were on another host, and nobody else has them")};
    }
    // They may be left from a time before this rank was on another host.
    if (const Status anew = begin_anew(); !anew) return anew.error();
    table::Arrival arrival(tables_, identity_.run_id, version);
    TableSink sink(arrival);
    const Status came = held.endpoint.empty()
                            ? arrival.copy(held_tables_path(identity_, identity_.rank, held.holder))
                            : fetch(worker_, held, identity_.rank, version, sink);
    if (!came) return came.error();
    settle();
    return Received{.bytes = arrival.bytes()};
  }
  [[nodiscard]] bool has_remains() const override { return false; }
  void clear() override {}
  void stage(Version n, const arena::StagedStep&) override {
    for (const Kept& kept : kept()) HF_ASSERT(kept.tables->staged() == n);
  }
  void unstage() override {
    for (const Kept& kept : kept()) {
      if (!kept.tables->fresh()) kept.tables->unstage();
    }
  }
  void update(std::size_t threads) override {
    tables_.update(threads);
    settle(threads);
    for (const Kept& kept : kept()) {
      if (const Status shrunk = kept.tables->shrink(); !shrunk) {
        std::fprintf(stderr, "holdfast: the memory of evicted rows is not given back: %s\n",
                     shrunk.error().what.c_str());
      }
    }
  }
  void finish() override {
    if (tables_.staged() == tables_.version() + 1) tables_.update(1);
    settle();
  }
  [[nodiscard]] std::uint64_t own_bytes() const override { return 0; }
  [[nodiscard]] std::vector<OwnPart> own_parts(Version) override { return {}; }
  [[nodiscard]] Result<arena::Arena*> hold_for(Rank, std::uint64_t) override {
    return Error{Blame::kWorld, "a parameter server holds nothing for workers"};
  }
  [[nodiscard]] Status show(const std::string&) override {
    return Error{Blame::kWorld, "a parameter server is not rehearsed"};
  }
  // At once: rows change before the next update, when workers pull new ones.
  [[nodiscard]] Keeping keep(const std::string& path) override {
    const Rank me = identity_.rank;
    return
        [done = write_table_part(tables_, tables_path(identity_, me), me, path)] { return done; };
  }
  [[nodiscard]] Result<Received> load(const std::string& dir, const std::string& name,
                                      Version version) override {
    forget_held();
    if (const Status anew = begin_anew(); !anew) return anew.error();
    const auto bytes = load_table_part(tables_, identity_.rank, version, dir, name);
    if (!bytes) return bytes.error();
    return Received{.bytes = *bytes};
  }
  void forget_held() override {
    drop_unless([](Rank, const table::Tables&) { return false; });
  }
  [[nodiscard]] bool holds_by_itself() const override { return true; }
  [[nodiscard]] Status hold(const std::vector<Rank>& wards, const std::stop_token& stop) override {
    drop_unless([&](Rank ward, const table::Tables& held) {
      return held.version() == tables_.version() &&
             std::find(wards.begin(), wards.end(), ward) != wards.end();
    });
    for (const Rank ward : wards) {
      if (held_.contains(ward)) continue;
      const std::string path = held_tables_path(identity_, ward, identity_.rank);
      table::Tables::remove(path);
      auto held = table::Tables::open(path, tables_.specs(), identity_.run_id);
      if (!held) return no_copy(held.error());
      table::Arrival arrival(*held, identity_.run_id, tables_.version());
      TableSink sink(arrival);
      const Status came = fetch(worker_, worker_.neighbours().location_of(ward), ward,
                                tables_.version(), sink, stop);
      if (!came) {
        table::Tables::remove(path);
        return sink.has_refused() ? no_copy(came.error()) : came.error();
      }
      held_.emplace(ward, *std::move(held));
    }
    return {};
  }
  [[nodiscard]] collective::Registered gradients() override { return {}; }

 private:
  [[nodiscard]] Status begin_anew() {
    if (tables_.fresh()) return {};
    const std::string path = tables_path(identity_, identity_.rank);
    table::Tables::remove(path);
    auto anew = table::Tables::open(path, tables_.specs(), identity_.run_id);
    if (!anew) return anew.error();
    tables_ = *std::move(anew);
    return {};
  }
  // The second copy can not be had, however often it is tried. The job ends by this name.
  Error no_copy(const Error& why) {
    return worker_.fail(cat("a server can not hold the rows of another one: ", why.what,
                            ". HOLDFAST_REPLICAS=0 does without second copies"));
  }

  // Opens what this rank's predecessor held for others. What follows a step that is committed here
  // is brought to it.
  void open_held() {
    for (Rank ward = identity_.world_size; ward < identity_.all_ranks(); ++ward) {
      const std::string path = held_tables_path(identity_, ward, identity_.rank);
      if (ward == identity_.rank || ::access(path.c_str(), F_OK) != 0) continue;
      // A file of another run, or a damaged one, counts for nothing; nor does one without its
      // holder's tables, which could not be brought to a version.
      auto held = table::Tables::open(path, tables_.specs(), identity_.run_id);
      if (held && !held->fresh() && !tables_.fresh()) {
        held_.emplace(ward, *std::move(held));
      } else {
        table::Tables::remove(path);
      }
    }
    settle();
  }

  // Brings what is held to the version of the own tables, once that is committed, and drops what
  // can not be brought there. A step that is staged here and there stays so.
  void settle(std::size_t threads = 1) {
    const Version mine = tables_.version();
    for (auto& [ward, held] : held_) {
      if (held.version() + 1 == mine && held.staged() == mine) held.update(threads);
    }
    drop_unless([mine](Rank, const table::Tables& held) { return held.version() == mine; });
  }

  template <class IsKept>
  void drop_unless(IsKept is_kept) {
    std::erase_if(held_, [&](const auto& entry) {
      if (is_kept(entry.first, entry.second)) return false;
      table::Tables::remove(held_tables_path(identity_, entry.first, identity_.rank));
      return true;
    });
  }

  Worker& worker_;
  const Identity identity_;
  const std::string from_;  // As in TableSetup.
  table::Tables tables_;
  std::map<Rank, table::Tables> held_;  // By ward; none is fresh.
};

}  // namespace

OpenStore in_tables(TableSetup setup) {
  return [setup = std::move(setup)](
             Worker& worker, const Identity& identity) -> Result<std::unique_ptr<StateStore>> {
    const std::string path = tables_path(identity, identity.rank);
    if (auto taken = take_from_predecessor(worker, path); !taken) return taken.error();
    auto tables = table::Tables::open(path, setup.specs, identity.run_id);
    if (!tables) return tables.error();
    return std::unique_ptr<StateStore>(
        std::make_unique<TableStore>(worker, identity, setup.from, *std::move(tables)));
  };
}

table::Tables& tables_of(Session& session) {
  return static_cast<TableStore&>(session.store()).tables();
}

std::vector<Kept> kept_tables(Session& session) {
  return static_cast<TableStore&>(session.store()).kept();
}

}  // namespace holdfast::runtime
