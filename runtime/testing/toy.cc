// toy: the smallest trainer, without any framework, for tests that kill processes. Its gradients
// are a pure function of (rank, step, parameters), so a run has one right result, bit for bit.
//
//   toy --steps N --out DIR [--optimizer sgd|momentum|adam|adamw] [--elements E]
//       [--pause US] [--lingers US] [--private own|same] [--hold STEP [--holds RANK]] [--hold-again
//       STEP] [--forgets STEPS]
//       [--flips N] [--flips-of FILE] [--loses N] [--keys N]
//
// --pause US: a step waits so long, in place of computing. --lingers US: likewise, until there is a
// file DIR/go: a test writes it once it has said and seen all that it wants of a job that trains.
// --private same: the private bytes are the same on all ranks; else they differ. --hold STEP:
// within that step it waits until there is a file DIR/go. --holds RANK: only this rank does,
// each time that it makes the step, and it removes the file. --hold-again STEP: the same, with a
// file DIR/go-again.
// --forgets STEPS: after so many steps of a process its gradients change, so a successor, which has
// made none, goes on with other ones.
// --flips N: in every fifth step of rank 1 that is recorded for a rehearsal, N times, one bit of a
// gradient is flipped, as by a processor that computes wrong; rank 1 adds the step to DIR/flips.
// The training then ends after the step whose number the file DIR/last comes to hold.
// --flips-of FILE: rank 1 flips a bit in the steps that such a file names.
// --loses N: rank 1 loses N pages of its arena, one after the other, at random instants.
// --keys N: in each step it uses N keys of each of two tables of the job's parameter servers. More
// and more keys are there, and all of them are written at the end. Rows of the first table are
// evicted in some steps.
// At the end every rank writes DIR/rank-<r>: version, position, parameters, moments, private bytes.
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "base/text.h"
#include "config/settings.h"
#include "os/files.h"
#include "os/lost_pages.h"
#include "runtime/scheduler/scheduler.h"
#include "runtime/worker/arena_store.h"
#include "runtime/worker/session.h"
#include "runtime/worker/worker.h"

namespace holdfast::runtime {
namespace {

struct Options {
  Version steps = 100;
  std::string out;
  arena::Optimizer optimizer = arena::Optimizer::kMomentum;
  std::uint64_t elements = 100'000;
  unsigned pause_us = 0;
  unsigned lingers_us = 0;
  bool same_private = false;
  Version hold = 0;  // The step in which to wait; 0: none. So is the next.
  Version hold_again = 0;
  Rank holds = kNoRank;  // The rank that waits there; kNoRank: all.
  Version forgets = 0;
  int flips = 0;
  std::string flips_of;
  int loses = 0;
  std::size_t keys = 0;  // Of a step, in each table; 0: there are no tables.
};

// Like a batch norm's running mean: depends on all steps so far and differs between ranks.
struct Private {
  std::uint64_t steps = 0;
  std::uint64_t chain = 0;
};

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "toy: %s\n", why.c_str());
  std::exit(1);
}

template <class T>
T must(Result<T> result) {
  if (!result) die(result.error().what);
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

// A number between -1 and 1.
float draw(std::uint64_t seed) {
  return static_cast<float>(static_cast<std::int32_t>(seed >> 32)) * 0x1p-31F;
}

Private next(const Private& before, Rank rank, Version step) {
  return {before.steps + 1, derive(before.chain, rank, step)};
}

// Takes pages of an arena away, from the gradients on, as memory errors do. Those of private bytes
// are also touched at once: training seldom reads them.
class Thief {
 public:
  // `steps`: how many this process has made. After each loss the thief waits for one more.
  Thief(arena::Arena& arena, int pages, bool with_private, const std::atomic<Version>& steps)
      : thread_([=, &arena, &steps](const std::stop_token& stop) {
          const arena::Layout& layout = arena.layout();
          auto* first = reinterpret_cast<std::byte*>(arena.gradients().data());
          const std::uint64_t end = with_private ? layout.file_bytes() : layout.private_offset(0);
          const std::uint64_t count = (end - layout.gradients_offset()) / os::kPage;
          Prng random(static_cast<std::uint64_t>(::getpid()));
          for (int i = 0; i < pages; ++i) {
            const Version before = steps;
            while (i > 0 && steps == before && !stop.stop_requested()) ::usleep(200);
            if (stop.stop_requested()) return;
            ::usleep(static_cast<useconds_t>(random.below(8000)));
            const std::uint64_t at = random.below(count) * os::kPage;
            const std::uint64_t offset = layout.gradients_offset() + at;
            os::lose_page(first + at);
            const bool touches = random.below(2) == 0 || offset >= layout.private_offset(0);
            if (touches) touch(first + at);
          }
        }) {}

 private:
  // The training thread may write to it at the same time: that is what is tried.
  __attribute__((no_sanitize("thread"))) static void touch(volatile const std::byte* byte) {
    (void)*byte;
  }
  std::jthread thread_;
};

class Toy {
 public:
  Toy(const Options& options, Worker& worker)
      : options_(options),
        session_(must(Session::open(
            worker,
            in_arena(layout(options), options.same_private ? Secrecy::kShared : Secrecy::kOwn, 0,
                     prepare_arena(worker, layout(options)))))) {
    std::ifstream flips(options.flips_of);
    for (Version step = 0; flips >> step;) flips_.insert(step);
  }

  void run() {
    define_tables();
    while (must(session_->meet({})) == Met::kToFill) initialise();
    check_private();
    if (options_.loses > 0 && session_->identity().rank == 1 && !session_->rehearsal()) {
      thief_.emplace(arena_of(*session_), options_.loses, options_.same_private, steps_);
    }
    while (session_->version() < last_step()) {
      if (session_->version() + kLastWhole > last_step()) thief_.reset();
      step();
    }
    write_state();
    must(session_->end());
  }

 private:
  static constexpr std::size_t kTables = 2;
  static constexpr Version kLastWhole = 20;  // In so many last steps no page is lost.

  Version last_step() {
    if (options_.flips == 0 || last_ != 0) return last_ != 0 ? last_ : options_.steps;
    std::ifstream(options_.out + "/last") >> last_;
    return last_ != 0 ? last_ : options_.steps;
  }

  static arena::Layout layout(const Options& options) {
    arena::Layout layout;
    layout.parameters = {{"first", options.elements / 2},
                         {"second", options.elements / 3},
                         {"third", options.elements / 6 + 1}};
    layout.optimizer = options.optimizer;
    layout.private_bytes = sizeof(Private);
    return layout;
  }

  // Fills version 0 with other values on each rank: those of one rank must win.
  void initialise() {
    auto& arena = arena_of(*session_);
    const auto seed = static_cast<std::uint64_t>(session_->identity().rank);
    for (std::size_t k = 0; k < 3; ++k) {
      auto values = arena.parameter(k);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = draw(derive(seed, k, i));
    }
    const Private begin{};
    std::memcpy(arena.private_bytes(0).data(), &begin, sizeof begin);
  }

  Private read_private() {
    Private value;
    std::memcpy(&value, arena_of(*session_).private_bytes(session_->version()).data(),
                sizeof value);
    return value;
  }

  void check_private() {
    Private expected;
    for (Version step = 1; step <= session_->version(); ++step) {
      expected = next(expected, private_of(), step);
    }
    if (std::memcmp(&expected, &(current_ = read_private()), sizeof expected) != 0) {
      die(cat("the private bytes of version ", session_->version(), " are those of step ",
              current_.steps, " or of another rank"));
    }
  }

  void step() {
    const Began began = must(session_->begin_step());
    if (began == Began::kTooLate) die(session_->why_too_late());
    if (began == Began::kReformed) check_private();
    auto& arena = arena_of(*session_);
    const Version n = arena.version() + 1;
    const Rank rank = session_->identity().rank;
    const bool sampled = session_->sample();
    const float more = options_.forgets != 0 && ++made_ > options_.forgets ? 0x1p-10F : 0;
    const std::size_t flip = flips(n, sampled) ? n % 3 : 3;
    for (std::size_t k = 3; k-- > 0;) {
      const auto values = arena.parameter(k);
      const auto gradients = arena.gradient(k);
      const std::uint64_t seed = derive(n, rank, k);
      for (std::size_t i = 0; i < values.size(); ++i) {
        gradients[i] = 0.1F * values[i] + 0.01F * draw(mix(seed + i)) + more;
      }
      if (k == flip) flip_a_bit(gradients, n);
      if (sampled) session_->note(cat("gradient ", k), std::as_bytes(gradients));
      session_->reduce(gradients);
    }
    use_tables(n);
    if (options_.pause_us != 0) ::usleep(options_.pause_us);
    if (options_.lingers_us != 0 && ::access((options_.out + "/go").c_str(), F_OK) != 0) {
      ::usleep(options_.lingers_us);
    }
    if (options_.holds == kNoRank || options_.holds == rank) {
      if (n == options_.hold) hold(options_.out + "/go");
      if (n == options_.hold_again) hold(options_.out + "/go-again");
    }
    const Private after = next(current_, private_of(), n);
    std::memcpy(arena.private_bytes(n).data(), &after, sizeof after);
    if (sampled) session_->note("the private bytes", arena.private_bytes(n));
    arena::StagedStep staged{.private_bytes = arena.private_bytes(n)};
    staged.arguments.learning_rate = 0.01 / static_cast<double>(1 + n / 100);
    staged.arguments.momentum = 0.9;
    staged.arguments.weight_decay = 0.001;
    staged.arguments.update_count = n;
    staged.position = {.epoch = n / 50, .index = n % 50, .samples = n * 32};
    if (must(session_->end_step(staged, 1.0 / static_cast<double>(n))) == Ended::kVoid) {
      check_private();
    } else {
      current_ = after;
      ++steps_;
    }
  }

  void define_tables() {
    if (options_.keys == 0) return;
    table::Spec spec{
        .name = "adam", .values = 5, .initial = {table::Initial::Kind::kUniform, -1, 1}};
    spec.optimizer.rule = table::Optimizer::Rule::kAdam;
    (void)must(session_->tables()->define(spec));
    spec = {.name = "sgd", .values = 8, .type = table::Type::kBfloat16};
    (void)must(session_->tables()->define(spec));
  }

  [[nodiscard]] std::uint64_t keys_of(Version n) const { return options_.keys * (10 + n); }

  // As with other exchanges, if it fails the step will be void.
  void use_tables(Version n) {
    for (std::size_t t = 0; t < kTables && options_.keys > 0; ++t) {
      TableClient& tables = *session_->tables();
      must(tables.set(t, 0.01 / static_cast<double>(1 + n / 100), 0.001));
      std::vector<std::uint64_t> keys(options_.keys);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        keys[i] = derive(n, session_->identity().rank, t, i) % keys_of(n);
      }
      std::vector<float> rows(keys.size() * tables.specs()[t].values);
      if (tables.pull(t, keys, rows).outcome != collective::Outcome::kDone) return;
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = 0.1F * rows[i] + draw(mix(n + i));
      (void)must(tables.push(t, keys, rows));
      if (t == 0 && n % 10 == 0) must(tables.evict(t, 6));
    }
  }

  // All rows of a table, in the newest version. Reads them in a step that is never made.
  std::vector<float> rows_of(std::size_t t) {
    TableClient& tables = *session_->tables();
    std::vector<std::uint64_t> keys(keys_of(session_->version()));
    std::iota(keys.begin(), keys.end(), 0);
    std::vector<float> rows(keys.size() * tables.specs()[t].values);
    do {
      if (must(session_->begin_step()) == Began::kTooLate) die(session_->why_too_late());
    } while (tables.pull(t, keys, rows).outcome != collective::Outcome::kDone);
    return rows;
  }

  void hold(const std::string& go) const {
    while (::access(go.c_str(), F_OK) != 0) ::usleep(1000);
    if (options_.holds != kNoRank) ::unlink(go.c_str());
  }

  bool flips(Version n, bool sampled) {
    if (flips_.contains(n) && session_->identity().rank == 1) return true;
    const bool is_right = !sampled || session_->rehearsal() != nullptr;
    if (is_right || session_->identity().rank != 1) return false;
    if (sampled_++ % 5 != 0 || sampled_ > 5 * options_.flips) return false;
    std::ofstream(options_.out + "/flips", std::ios::app) << n << '\n';
    return true;
  }

  static void flip_a_bit(std::span<float> gradients, Version n) {
    float& one = gradients[derive(n, 1) % gradients.size()];
    std::uint32_t bits = 0;
    std::memcpy(&bits, &one, sizeof bits);
    bits ^= std::uint32_t{1} << derive(n, 2) % 31;
    std::memcpy(&one, &bits, sizeof bits);
  }

  void write_state() {
    auto& arena = arena_of(*session_);
    std::string bytes;
    const auto add = [&](const void* data, std::size_t size) {
      bytes.append(static_cast<const char*>(data), size);
    };
    const Version version = arena.version();
    const arena::Position position = arena.position();
    add(&version, sizeof version);
    add(&position, sizeof position);
    add(arena.parameters().data(), arena.parameters().size_bytes());
    for (std::size_t k = 0; k < arena::moment_count(options_.optimizer); ++k) {
      add(arena.moments(k).data(), arena.moments(k).size_bytes());
    }
    add(arena.private_bytes(version).data(), arena.private_bytes(version).size());
    for (std::size_t t = 0; t < kTables && options_.keys > 0; ++t) {
      const auto rows = rows_of(t);
      add(rows.data(), rows.size() * sizeof(float));
    }
    must(os::write_file_atomically(cat(options_.out, "/rank-", session_->identity().rank), bytes));
  }

  [[nodiscard]] Rank private_of() const {
    return options_.same_private ? 0 : session_->identity().rank;
  }

  const Options& options_;
  std::unique_ptr<Session> session_;
  Private current_;
  Version made_ = 0;  // Steps that this process has made.
  Version last_ = 0;  // Of DIR/last; 0: there is no such file yet.
  int sampled_ = 0;   // Steps of it that were recorded.
  std::set<Version> flips_;
  std::atomic<Version> steps_ = 0;
  std::optional<Thief> thief_;  // Last: it uses the session.
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--steps")
      options.steps = std::stoull(value);
    else if (name == "--out")
      options.out = value;
    else if (name == "--elements")
      options.elements = std::stoull(value);
    else if (name == "--private")
      options.same_private = value == "same";
    else if (name == "--hold")
      options.hold = std::stoull(value);
    else if (name == "--hold-again")
      options.hold_again = std::stoull(value);
    else if (name == "--forgets")
      options.forgets = std::stoull(value);
    else if (name == "--holds")
      options.holds = std::stoi(value);
    else if (name == "--flips")
      options.flips = std::stoi(value);
    else if (name == "--flips-of")
      options.flips_of = value;
    else if (name == "--loses")
      options.loses = std::stoi(value);
    else if (name == "--keys")
      options.keys = std::stoull(value);
    else if (name == "--lingers")
      options.lingers_us = static_cast<unsigned>(std::stoul(value));
    else if (name == "--pause")
      options.pause_us = static_cast<unsigned>(std::stoul(value));
    else if (name == "--optimizer") {
      const std::map<std::string, arena::Optimizer> known = {
          {"sgd", arena::Optimizer::kSgd},
          {"momentum", arena::Optimizer::kMomentum},
          {"adam", arena::Optimizer::kAdam},
          {"adamw", arena::Optimizer::kAdamW}};
      if (!known.contains(value)) die(cat("no optimizer is called ", value));
      options.optimizer = known.at(value);
    } else
      die(cat("unknown option ", name));
  }
  if (options.out.empty()) die("--out DIR is missing");
  return options;
}

int main_of_toy(int argc, char** argv) {
  const auto settings = must(config::from_environment(::environ));
  if (settings.role == config::Role::kScheduler) return serve(settings);
  const Options options = parse(argc, argv);
  const auto worker = must(Worker::start(settings));
  Toy(options, *worker).run();
  return 0;
}

}  // namespace
}  // namespace holdfast::runtime

int main(int argc, char** argv) {
  return holdfast::runtime::main_of_toy(argc, argv);
}
