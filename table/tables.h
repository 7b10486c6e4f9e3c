// Tables: what one parameter server holds, in memory that outlives its process. A SIGKILL at any
// instruction leaves a file from which the next process gets exactly version n or n - 1, also while
// a table grows.
//
// The order of calls in step n (version() is n - 1):
//   1. read() for whoever pulls.
//   2. add() for each push, in the order of the workers' ranks. It sums the gradients of a key in
//      the order of calls.
//   3. stage(n, ...): new rows get their numbers, and the memory that the update needs is taken.
//   4. Outside: the commit barrier.
//   5. update(): the touched rows, in place, each with an undo. Then version() is n.
// unstage() gives the step up: what was added is forgotten, and its memory is given back.
//
// The bits of all rows are a function of what was added, in which order, and of the arguments. They
// depend neither on the number of threads nor on which rows came to which server.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "base/ids.h"
#include "base/result.h"
#include "table/rules.h"
#include "table/spec.h"

namespace holdfast::table {

struct Saved;

class Tables {
 public:
  // Maps the file at `path` (on a tmpfs) and recovers it: an update that a dead process began is
  // finished. Makes the file (0600) and missing folders. A file of another run, or one without a
  // version, is replaced by a new one. Takes a millisecond, however many rows there are.
  // Requires: the process that had it open is dead, or will never update again.
  // Errors: kUser: specifications that check() refuses, or others than those of the same run (names
  // the first difference). kWorld: no room; the file is damaged; its process lives.
  [[nodiscard]] static Result<Tables> open(const std::string& path, std::vector<Spec> specs,
                                           std::uint64_t run_id);
  // Removes the file at a path, and what a process has left beside it that died in shrink().
  static void remove(const std::string& path);
  Tables(Tables&&) noexcept;
  Tables& operator=(Tables&&) noexcept;
  ~Tables();  // Unmaps; the file stays.

  [[nodiscard]] const std::vector<Spec>& specs() const;
  [[nodiscard]] std::uint64_t run_id() const;
  [[nodiscard]] bool fresh() const { return version() == kNoVersion; }
  [[nodiscard]] Version version() const;           // Committed; kNoVersion: fresh.
  [[nodiscard]] Version staged() const;            // version() or version() + 1; kNoVersion: fresh.
  [[nodiscard]] arena::Position position() const;  // Of version(). Requires: not fresh.
  // Of table t, in version(), with evicted ones that still have memory.
  [[nodiscard]] std::uint64_t rows(std::size_t t) const;
  // The update count with which table t came to version(); 0: it was given none yet.
  [[nodiscard]] std::uint64_t updates(std::size_t t) const;
  [[nodiscard]] std::uint64_t clock(std::size_t t) const;  // Arguments::clock of version().
  // Memory that the file takes, in bytes.
  [[nodiscard]] std::uint64_t bytes() const;

  // Commits version v, without rows. Requires: fresh.
  void begin(Version v, const arena::Position& position);

  // Writes the values of these keys' rows to `out`, Spec::values for each. A row that nobody has
  // written has the values with which it would begin.
  void read(std::size_t t, std::span<const std::uint64_t> keys, std::span<float> out) const;

  // Adds gradients, Spec::values for each key, to what the step under way has for these keys. A key
  // may come several times. Error (kWorld): there is no memory for them; the step must be given up,
  // and until then all further calls and stage() return the same error.
  [[nodiscard]] Status add(std::size_t t, std::span<const std::uint64_t> keys,
                           std::span<const float> gradients);
  // Makes what was added step n. `arguments`: for each table. Requires: n == version() + 1. Error
  // (kWorld): there is no memory for new rows, or was none in add(); names the table and the sizes.
  // Error (kUser): numbers that make no sense, for a table of which rows are touched. Nothing is
  // staged.
  [[nodiscard]] Status stage(Version n, const arena::Position& position,
                             std::span<const Arguments> arguments);
  void unstage();
  // Carries out the staged step on 1..16 threads. Requires: staged() == version() + 1.
  void update(std::size_t threads);
  // Gives back the memory of evicted rows, if they are an eighth of all or more; takes as long as
  // copying all others then. Looks only if rows may have been evicted since the last call. A kill
  // meanwhile changes nothing. Error (kWorld): there is no room for the others beside all; then
  // nothing is changed. Requires: nothing is staged.
  [[nodiscard]] Status shrink();

  // The same for equal rows in any order. Reads all rows.
  [[nodiscard]] std::uint64_t digest() const;
  // All keys of table t, in ascending order.
  [[nodiscard]] std::vector<std::uint64_t> keys(std::size_t t) const;

 private:
  friend class Arrival;
  friend class Loading;
  friend Status save(const Tables& tables, const std::string& folder, const Saved& saved,
                     Rank server);
  friend Status load(Tables& tables, const std::string& folder,
                     const std::function<bool(std::uint64_t key)>& mine,
                     const arena::Position& position);
  struct State;
  explicit Tables(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::table
