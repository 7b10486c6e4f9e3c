#include "runtime/worker/serve.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "collective/waiting.h"
#include "io/loop.h"
#include "runtime/worker/session.h"
#include "runtime/worker/table_exchange.h"
#include "runtime/worker/table_setup.h"
#include "runtime/worker/table_store.h"
#include "table/saved.h"

namespace holdfast::runtime {
namespace {

using collective::Outcome;

constexpr Duration kBetweenTold = std::chrono::seconds(1);

class Server {
 public:
  Server(Worker& worker, Session& session, Rank workers)
      : worker_(worker), session_(session), tables_(tables_of(session)), workers_(workers) {}

  Status run() {
    for (;;) {
      const auto began = session_.begin_step();
      if (!began) return began.error();
      if (*began == Began::kTooLate) return session_.end();
      kept_ = kept_tables(session_);
      if (std::exchange(is_begun_, true)) give_up();  // The step before.
      Result<bool> goes_on = serve_step();
      if (!goes_on) return goes_on.error();
      if (!*goes_on) return session_.end();
    }
  }

 private:
  // false: the training has ended.
  Result<bool> serve_step() {
    for (;;) {
      const auto group = session_.everyone();
      TableExchange exchange(*group, workers_, tables_.specs(), session_.current()->options());
      collective::Verdict verdict = exchange.meet({});
      const bool ends =
          verdict.outcome == Outcome::kDone && exchange.agreed().call == TableCall::kEndStep;
      if (verdict.outcome == Outcome::kDone) {
        const auto done = ends ? stage(exchange) : serve(exchange);
        if (!done) return worker_.fail(done.error().what);
        verdict = *done;
      }
      if (verdict.outcome == Outcome::kLeft) return false;
      if (verdict.outcome == Outcome::kAborted) return true;
      if (verdict.outcome != Outcome::kDone) return worker_.fail(verdict.why);
      if (!ends) continue;
      const auto ended = session_.end_step({}, 0.0);
      if (!ended) return ended.error();
      is_begun_ = *ended != Ended::kCommitted;
      tell_holds();
      return true;
    }
  }

  Result<collective::Verdict> serve(TableExchange& exchange) {
    if (exchange.agreed().call == TableCall::kGiveUp) {
      give_up();
      return collective::Verdict{};
    }
    if (exchange.agreed().call == TableCall::kSave) return save(exchange);
    const std::size_t t = exchange.agreed().table;
    if (t >= tables_.specs().size()) return Error{Blame::kPeer, cat("there is no table ", t)};
    return exchange.agreed().call == TableCall::kPull ? answer(exchange, t) : add(exchange, t);
  }

  collective::Verdict save(TableExchange& exchange) {
    std::string folder(kLongestFolder, '\0');
    collective::Verdict told = exchange.tell(std::as_writable_bytes(std::span(folder)));
    if (told.outcome != Outcome::kDone) return told;
    folder.resize(std::strlen(folder.c_str()));
    const table::Saved saved{tables_.specs(), session_.identity().run_id, tables_.version(),
                             session_.identity().servers};
    const Rank me = kept_.front().server;
    Status is_saved = Error{Blame::kPeer, cat("version ", exchange.agreed().table,
                                              " is to be saved, and this is ", saved.step)};
    if (exchange.agreed().table == saved.step) {
      // Whoever waits for this server is not to think that it hangs.
      const collective::TeamWait wait(session_.current()->options().team_waits);
      is_saved = table::save(tables_, folder, saved, me);
    }
    std::string error;
    told = exchange.say(is_saved ? std::string() : is_saved.error().what, error);
    if (told.outcome == Outcome::kDone && error.empty()) told = exchange.say("", error);
    if (told.outcome == Outcome::kDone && !error.empty()) table::forget(folder, saved, me);
    return told;
  }

  collective::Verdict answer(TableExchange& exchange, std::size_t t) {
    const std::size_t values = tables_.specs()[t].values;
    collective::Verdict told = exchange.take({kept_.front().server}, sizeof(std::uint64_t), came_);
    if (told.outcome != Outcome::kDone) return told;
    fill(keys_, came_.front());
    rows_.resize(keys_.size() * values);
    tables_.read(t, keys_, rows_);
    return exchange.answer(std::as_writable_bytes(std::span(rows_)), values * sizeof(float));
  }

  Result<collective::Verdict> add(TableExchange& exchange, std::size_t t) {
    std::vector<Rank> servers;
    for (const Kept& kept : kept_) servers.push_back(kept.server);
    collective::Verdict told = exchange.take(servers, sizeof(std::uint64_t), came_keys_);
    if (told.outcome != Outcome::kDone) return told;
    told = exchange.take(servers, tables_.specs()[t].values * sizeof(float), came_);
    if (told.outcome != Outcome::kDone) return told;
    pushed_.resize(tables_.specs().size());
    pushed_[t] = true;
    for (std::size_t i = 0; i < kept_.size(); ++i) {
      fill(keys_, came_keys_[i]);
      fill(rows_, came_[i]);
      if (i == 0 && exchange.agreed().call == TableCall::kAssign) {
        if (Status once = see_that_all_come_once(t); !once) return once.error();
      }
      if (Status added = kept_[i].tables->add(t, keys_, rows_); !added) return added.error();
    }
    return collective::Verdict{};
  }

  // Values that two workers give would be added up.
  Status see_that_all_come_once(std::size_t t) {
    for (const std::uint64_t key : keys_) {
      if (assigned_.emplace(t, key).second) continue;
      return Error{Blame::kUser, cat("the row of key ", key, " of table ", tables_.specs()[t].name,
                                     " is given first values by two workers: one has to do it")};
    }
    return {};
  }

  // What was pushed in this step counts for nothing.
  void give_up() {
    for (const Kept& kept : kept_) kept.tables->unstage();
    pushed_.clear();
    assigned_.clear();
  }

  template <class T>
  static void fill(std::vector<T>& numbers, const std::vector<std::byte>& bytes) {
    numbers.resize(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  }

  Result<collective::Verdict> stage(TableExchange& exchange) {
    std::vector<table::Arguments> arguments(tables_.specs().size());
    const auto bytes = std::as_writable_bytes(std::span(arguments));
    if (!bytes.empty()) {
      collective::Verdict told = exchange.tell(bytes);
      if (told.outcome != Outcome::kDone) return told;
    }
    // All servers count alike, also those of which no rows were meant. Rows that begin anew are
    // counted from the beginning.
    for (std::size_t t = 0; t < arguments.size(); ++t) {
      const std::uint64_t more = t < pushed_.size() && pushed_[t] ? 1 : 0;
      arguments[t].update_count = arguments[t].assigns != 0 ? 0 : tables_.updates(t) + more;
      arguments[t].clock = tables_.clock(t) + more;
      const std::uint64_t steps = std::exchange(arguments[t].evicts_before, 0);  // Of evict().
      if (steps > 0 && steps <= arguments[t].clock) {
        arguments[t].evicts_before = arguments[t].clock - steps + 1;
      }
    }
    pushed_.clear();
    assigned_.clear();
    const Version n = tables_.version() + 1;
    if (exchange.agreed().table != n) {
      return Error{Blame::kPeer, cat("the workers end step ", exchange.agreed().table,
                                     ", and this server is in step ", n)};
    }
    for (const Kept& kept : kept_) {
      if (Status staged = kept.tables->stage(n, {}, arguments); !staged) return staged.error();
    }
    return collective::Verdict{};
  }

  // For `holdfast status`.
  void tell_holds() {
    const Instant now = io::Loop::now();
    if (now < tells_next_) return;
    tells_next_ = now + kBetweenTold;
    auto tables = nlohmann::json::array();
    for (std::size_t t = 0; t < tables_.specs().size(); ++t) {
      tables.push_back({{"name", tables_.specs()[t].name}, {"rows", tables_.rows(t)}});
    }
    const nlohmann::json json = {{"tables", tables}, {"bytes", tables_.bytes()}};
    worker_.note_holds(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  Worker& worker_;
  Session& session_;
  table::Tables& tables_;
  const Rank workers_;
  Instant tells_next_{};
  bool is_begun_ = false;     // A step that is not committed.
  std::vector<bool> pushed_;  // By table: whether the workers have pushed to it in this step.
  std::set<std::pair<std::size_t, std::uint64_t>> assigned_;  // In this step: tables and keys.
  std::vector<Kept> kept_;  // In this step; the own tables are the first.
  TableExchange::Came came_keys_, came_;
  std::vector<std::uint64_t> keys_;
  std::vector<float> rows_;
};

}  // namespace

Status serve_tables(Worker& worker) {
  const auto told = worker.key_values().get({kTables}, config::kNever);
  if (!told) return told.error();
  auto setup = setup_in(*told ? (*told)->value : std::string());
  if (!setup) return worker.fail(setup.error().what);
  const auto session = Session::open(worker, in_tables(*std::move(setup)));
  if (!session) return session.error();
  if (const Status joined = (*session)->join({}); !joined) return joined;
  return Server(worker, **session, (*session)->identity().world_size).run();
}

}  // namespace holdfast::runtime
