// TableExchange: what workers and parameter servers do together. Each exchange is one or more
// operations of the group of all ranks, so it ends, is sealed and goes between hosts as all others.
//
// First all ranks meet: each worker says what it wants (a TableWord), and the servers listen. All
// ranks then know all words, and thus how many bytes come from whom. A worker's rows are in the
// order of the servers; a server's are in the order of the workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "collective/current_generation.h"
#include "collective/group.h"
#include "collective/outcome.h"
#include "table/spec.h"

namespace holdfast::runtime {

enum class TableCall : std::uint64_t {
  kNone,
  kPull,
  kPush,
  kAssign,
  kSave,
  kEndStep,
  kGiveUp,  // What was pushed in this step counts for nothing.
};

struct TableWord {
  TableCall call = TableCall::kNone;
  std::uint64_t table = 0;            // kSave, kEndStep: the version.
  std::uint64_t digest = 0;           // kSave, kEndStep: of what worker 0 then tells.
  std::vector<std::uint64_t> counts;  // By server: how many rows are meant.
};

// A folder is told in so many bytes.
inline constexpr std::size_t kLongestFolder = 4096;

class TableExchange {
 public:
  // Ranks below `workers` are workers, all others servers. `options`: where it is counted who waits
  // in an exchange. Requires: all of these outlive this.
  TableExchange(collective::Group& everyone, Rank workers, const std::vector<table::Spec>& specs,
                const collective::CurrentGeneration::Options& options);

  // All ranks call it; a server gives no word. kMismatch: the workers do not want the same.
  [[nodiscard]] collective::Verdict meet(const TableWord& mine);
  // What all workers want.
  [[nodiscard]] const TableWord& agreed() const { return words_.front(); }

  // From the workers to the servers: `mine` has `bytes` for each row. All ranks call it.
  [[nodiscard]] collective::Verdict give(std::span<const std::byte> mine, std::size_t bytes);
  // As give(), for a server: in `came` it gets what is for each of these servers.
  using Came = std::vector<std::vector<std::byte>>;
  [[nodiscard]] collective::Verdict take(const std::vector<Rank>& servers, std::size_t bytes,
                                         Came& came);
  // From the servers to the workers: a server's `rows` go out, a worker's come in.
  [[nodiscard]] collective::Verdict answer(std::span<std::byte> rows, std::size_t bytes);
  // What went wrong in each rank, if anything did; all hear the first such sentence, which is cut
  // to kLongestSentence bytes.
  static constexpr std::size_t kLongestSentence = 512;
  [[nodiscard]] collective::Verdict say(const std::string& mine, std::string& first);
  // Of worker 0, for all.
  [[nodiscard]] collective::Verdict tell(std::span<std::byte> bytes);

 private:
  [[nodiscard]] Rank servers() const { return all_.world_size() - workers_; }
  [[nodiscard]] bool serves() const { return all_.rank() >= workers_; }
  [[nodiscard]] std::uint64_t count(Rank worker, Rank server) const {
    return words_[static_cast<std::size_t>(worker)].counts[static_cast<std::size_t>(server)];
  }
  // Where the rows of a worker for this server begin among that worker's.
  [[nodiscard]] std::uint64_t before(Rank worker, Rank server) const;
  template <class Operation>
  [[nodiscard]] collective::Verdict run(Operation operation);
  [[nodiscard]] collective::Verdict check() const;
  [[nodiscard]] std::string in_words(const TableWord& word) const;

  collective::Group& all_;
  const std::vector<table::Spec>& specs_;
  const collective::CurrentGeneration::Options& options_;
  const Rank workers_;
  std::vector<TableWord> words_;  // By worker.
};

}  // namespace holdfast::runtime
