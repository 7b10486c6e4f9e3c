#include "runtime/worker/table_store.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "runtime/worker/ownership.h"

namespace holdfast::runtime {
namespace {

class TableStore final : public StateStore {
 public:
  TableStore(Rank rank, table::Tables tables) : rank_(rank), tables_(std::move(tables)) {}

  [[nodiscard]] table::Tables& tables() { return tables_; }

  [[nodiscard]] Holding holding() const override {
    return {tables_.version(), tables_.staged(), true, {}};
  }
  void begin(const arena::Position& position) override {
    if (tables_.fresh()) tables_.begin(0, position);
  }
  [[nodiscard]] Losses look_for_losses(bool) override { return {}; }
  [[nodiscard]] Result<Received> receive(const wire::Order&, Version version) override {
    return Error{Blame::kWorld, cat("the tables of rank ", rank_, " in version ", version,
                                    " were on another host, and nobody else has them")};
  }
  [[nodiscard]] bool has_remains() const override { return false; }
  void clear() override {}
  void stage(Version n, const arena::StagedStep&) override { HF_ASSERT(tables_.staged() == n); }
  void unstage() override {
    if (!tables_.fresh()) tables_.unstage();
  }
  void update(std::size_t threads) override { tables_.update(threads); }
  void finish() override {
    if (tables_.staged() == tables_.version() + 1) tables_.update(1);
  }
  [[nodiscard]] std::uint64_t own_bytes() const override { return 0; }
  [[nodiscard]] std::vector<OwnPart> own_parts(Version) override { return {}; }
  [[nodiscard]] Result<arena::Arena*> hold_for(Rank, std::uint64_t) override {
    return Error{Blame::kWorld, "a parameter server holds nothing for workers"};
  }
  [[nodiscard]] Status show(const std::string&) override {
    return Error{Blame::kWorld, "a parameter server is not rehearsed"};
  }
  void forget_held() override {}
  [[nodiscard]] collective::Registered gradients() override { return {}; }

 private:
  const Rank rank_;
  table::Tables tables_;
};

}  // namespace

OpenStore in_tables(std::vector<table::Spec> specs) {
  return [specs = std::move(specs)](
             Worker& worker, const Identity& identity) -> Result<std::unique_ptr<StateStore>> {
    // Which rows a server has follows from its number and from how many there are.
    const std::string path = cat(identity.directory, "/tables-",
                                 identity.rank - identity.world_size, "-of-", identity.servers);
    // Short pauses: the predecessor's threads mostly need only a moment to get a core to exit on.
    const auto pause = [&worker, wait = Duration(std::chrono::microseconds(100))]() mutable {
      return worker.pause(
          std::exchange(wait, std::min<Duration>(2 * wait, std::chrono::milliseconds(2))));
    };
    if (auto taken = take_ownership(path, pause, worker.settings().replacement_timeout); !taken) {
      return taken.error();
    }
    auto tables = table::Tables::open(path, specs, identity.run_id);
    if (!tables) return tables.error();
    return std::unique_ptr<StateStore>(
        std::make_unique<TableStore>(identity.rank, *std::move(tables)));
  };
}

table::Tables& tables_of(Session& session) {
  return static_cast<TableStore&>(session.store()).tables();
}

}  // namespace holdfast::runtime
