#include "io/journal.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <span>
#include <utility>

#include "base/digest.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/fd.h"
#include "wire/codec.h"

namespace holdfast::io {
namespace {

constexpr int kApplication = 0x48464a31;  // "HFJ1": what `file` and we know a journal by.
constexpr int kSchema = 8;
constexpr int kBusyMilliseconds = 2000;  // Long enough for a killed scheduler to be gone.

// The formation is in one row, but for its roster: each seat has a row, by rank.
constexpr const char* kCreate =
    "CREATE TABLE journal(id INTEGER PRIMARY KEY CHECK (id = 1), job TEXT NOT NULL, record BLOB,"
    " digest INTEGER);"
    "CREATE TABLE seats(rank INTEGER PRIMARY KEY, record BLOB NOT NULL, digest INTEGER);"
    "CREATE TABLE kept(key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER, digest INTEGER);"
    "CREATE TABLE writers(writer INTEGER PRIMARY KEY, id INTEGER, version INTEGER);"
    "CREATE TABLE remarks(number INTEGER PRIMARY KEY, record BLOB NOT NULL, digest INTEGER)";

std::int64_t as_signed(std::uint64_t number) {
  return static_cast<std::int64_t>(number);
}

std::int64_t digest_of(std::string_view bytes) {
  return static_cast<std::int64_t>(digest(std::as_bytes(std::span(bytes.data(), bytes.size()))));
}

// Covers the version, too: else the version of another value would not be noticed.
std::int64_t digest_of(const wire::KeyValue& pair) {
  return as_signed(static_cast<std::uint64_t>(digest_of(pair.value)) + pair.version);
}

// Makes the file if it is missing. Only its owner may read it; SQLite gives its helper files the
// same mode.
Status make_file(const std::string& path) {
  const os::Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file || errno == EEXIST) return {};
  return os::system_error(cat("cannot make the journal ", path), errno);
}

// If it can not be made, step() returns an error.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql)
      : usable_(sqlite3_prepare_v2(db, sql, -1, &handle_, nullptr) == SQLITE_OK) {}
  ~Statement() { sqlite3_finalize(handle_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Sets the next '?'. The bytes have to outlive the statement.
  void bind(std::string_view bytes) {
    usable_ = usable_ && sqlite3_bind_blob64(handle_, ++bound_, bytes.data(), bytes.size(),
                                             SQLITE_STATIC) == SQLITE_OK;
  }
  void bind(std::int64_t number) {
    usable_ = usable_ && sqlite3_bind_int64(handle_, ++bound_, number) == SQLITE_OK;
  }
  // SQLITE_ROW, SQLITE_DONE or an error.
  int step() { return usable_ ? sqlite3_step(handle_) : SQLITE_ERROR; }

  [[nodiscard]] bool is_null(int column) const {
    return sqlite3_column_type(handle_, column) == SQLITE_NULL;
  }
  [[nodiscard]] std::int64_t number(int column) const {
    return sqlite3_column_int64(handle_, column);
  }
  [[nodiscard]] std::string bytes(int column) const {
    const auto* bytes = static_cast<const char*>(sqlite3_column_blob(handle_, column));
    const auto size = static_cast<std::size_t>(sqlite3_column_bytes(handle_, column));
    return bytes == nullptr ? std::string() : std::string(bytes, size);
  }

 private:
  sqlite3_stmt* handle_ = nullptr;
  int bound_ = 0;
  bool usable_;
};

// A database connection with what goes wrong in it put into words.
struct SqliteJournal : Journal {
  explicit SqliteJournal(std::string file) : path(std::move(file)) {}
  ~SqliteJournal() override { sqlite3_close(db); }
  SqliteJournal(const SqliteJournal&) = delete;
  SqliteJournal& operator=(const SqliteJournal&) = delete;

  [[nodiscard]] Error failure(std::string_view doing) const {
    const int code = sqlite3_errcode(db);
    if (code == SQLITE_NOTADB) {
      return Error{Blame::kUser,
                   cat(path,
                       " is no journal (not an SQLite database); name another file, or "
                       "move this one away to begin anew")};
    }
    if (code == SQLITE_BUSY || code == SQLITE_LOCKED) {
      return Error{Blame::kUser, cat("the journal ", path,
                                     " is held by another process; end that scheduler "
                                     "first (`fuser ",
                                     path, "` names it)")};
    }
    return Error{Blame::kWorld,
                 cat("cannot ", doing, " the journal ", path, ": ", sqlite3_errmsg(db))};
  }

  Status execute(const char* sql, std::string_view doing) {
    if (sqlite3_exec(db, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return failure(doing);
    return {};
  }

  // The one number that a query gives.
  Result<std::int64_t> number(const char* sql) {
    Statement query(db, sql);
    if (query.step() != SQLITE_ROW) return failure("read");
    return query.number(0);
  }

  // Opens the file, which exists.
  Status connect() {
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
    if (sqlite3_open_v2(path.c_str(), &db, flags, nullptr) != SQLITE_OK) return failure("open");
    sqlite3_busy_timeout(db, kBusyMilliseconds);
    return execute("PRAGMA locking_mode=EXCLUSIVE", "open");
  }

  // True: a journal of a schema we know. False: an empty file. Touches nothing.
  Result<bool> recognise() {
    const auto tables = number("SELECT count(*) FROM sqlite_schema");
    if (!tables) return tables.error();
    const auto application = number("PRAGMA application_id");
    if (!application) return application.error();
    const auto schema = number("PRAGMA user_version");
    if (!schema) return schema.error();
    if (*tables == 0 && *application == 0) return false;
    if (*application != kApplication) {
      return Error{Blame::kUser,
                   cat(path,
                       " is an SQLite database of another program; name another file for "
                       "the journal")};
    }
    if (*schema != kSchema) {
      return Error{Blame::kUser, cat("the journal ", path, " was written by ",
                                     *schema > kSchema ? "a newer" : "an older",
                                     " Holdfast (schema ", *schema, ", this one knows ", kSchema,
                                     "); use that one, or move the file away "
                                     "to begin anew")};
    }
    return *tables != 0;
  }

  Status create(const std::string& job) {
    if (const auto begun = execute("BEGIN IMMEDIATE", "make"); !begun) return begun;
    const std::string stamp =
        cat("PRAGMA application_id=", kApplication, "; PRAGMA user_version=", kSchema);
    if (const auto made = execute(kCreate, "make"); !made) return made;
    if (const auto stamped = execute(stamp.c_str(), "make"); !stamped) return stamped;
    Statement insert(db, "INSERT INTO journal(id, job) VALUES(1, CAST(? AS TEXT))");
    insert.bind(job);
    if (insert.step() != SQLITE_DONE) return failure("make");
    return execute("COMMIT", "make");
  }

  Status check_job(const std::string& job) {
    Statement query(db, "SELECT job FROM journal WHERE id = 1");
    if (query.step() != SQLITE_ROW) return failure("read");
    const std::string owner = query.bytes(0);
    if (owner == job) return {};
    return Error{Blame::kUser,
                 cat("the journal ", path, " belongs to the job '", owner, "', not to '", job,
                     "'; name another file, or move this one away if that job is over")};
  }

  // A roster that is not empty replaces the seats.
  Status put(wire::Formation formation) {
    const auto roster = std::exchange(formation.roster, {});
    if (!roster.empty()) {
      if (const auto gone = execute("DELETE FROM seats", "write"); !gone) return gone;
    }
    for (std::size_t rank = 0; rank < roster.size(); ++rank) {
      if (const auto put = put_seat(static_cast<Rank>(rank), roster[rank]); !put) return put;
    }
    const std::string bytes = wire::encode(formation);
    Statement update(db, "UPDATE journal SET record = ?, digest = ? WHERE id = 1");
    update.bind(bytes);
    update.bind(digest_of(bytes));
    return update.step() == SQLITE_DONE ? Status{} : failure("write");
  }

  Status put_seat(Rank rank, const wire::Seat& seat) {
    return put_record("INSERT OR REPLACE INTO seats(rank, record, digest) VALUES(?, ?, ?)", rank,
                      wire::encode(seat));
  }

  // `sql` inserts a row of a number, a record and its digest.
  Status put_record(const char* sql, std::int64_t number, const std::string& bytes) {
    Statement insert(db, sql);
    insert.bind(number);
    insert.bind(bytes);
    insert.bind(digest_of(bytes));
    return insert.step() == SQLITE_DONE ? Status{} : failure("write");
  }

  Status put(const wire::KeyValue& pair) {
    Statement insert(db,
                     "INSERT OR REPLACE INTO kept(key, value, version, digest) VALUES(?, ?, ?, ?)");
    insert.bind(pair.key);
    insert.bind(pair.value);
    insert.bind(as_signed(pair.version));
    insert.bind(digest_of(pair));
    return insert.step() == SQLITE_DONE ? Status{} : failure("write");
  }

  Status put(const wire::Writer& last) {
    Statement insert(db, "INSERT OR REPLACE INTO writers(writer, id, version) VALUES(?, ?, ?)");
    insert.bind(as_signed(last.writer));
    insert.bind(as_signed(last.id));
    insert.bind(as_signed(last.version));
    return insert.step() == SQLITE_DONE ? Status{} : failure("write");
  }

  Status put(const wire::Changes& changes) {
    if (changes.formation) {
      if (const auto put_whole = put(*changes.formation); !put_whole) return put_whole;
    }
    for (const auto& [rank, seat] : changes.seats) {
      if (const auto done = put_seat(rank, seat); !done) return done;
    }
    for (const auto& pair : changes.kept) {
      if (const auto done = put(pair); !done) return done;
    }
    for (const auto& last : changes.writers) {
      if (const auto done = put(last); !done) return done;
    }
    for (const auto& [number, remark] : changes.remarks) {
      const char* sql = "INSERT OR REPLACE INTO remarks(number, record, digest) VALUES(?, ?, ?)";
      const auto done = put_record(sql, as_signed(number), wire::encode(remark));
      if (!done) return done;
    }
    return {};
  }

  [[nodiscard]] Error damaged(std::string_view what) const {
    return Error{Blame::kWorld, cat(what, " in the journal ", path,
                                    " is damaged; move the file away to begin the job anew")};
  }

  [[nodiscard]] Error unreadable(std::string_view what) const {
    return Error{Blame::kUser, cat(what, " in the journal ", path,
                                   " can not be read by this version of Holdfast; go on with the "
                                   "one that wrote it, or move the file away to begin the job "
                                   "anew")};
  }

  Status load_formation(std::optional<wire::Formation>& formation) {
    Statement query(db, "SELECT record, digest FROM journal WHERE id = 1");
    if (query.step() != SQLITE_ROW) return failure("read");
    if (query.is_null(0)) return {};
    const std::string bytes = query.bytes(0);
    auto decoded = wire::decode_formation(bytes);
    if (query.number(1) != digest_of(bytes)) return damaged("the formation");
    if (!decoded) return unreadable("the formation");
    formation = std::move(*decoded);
    return load_list(formation->roster, "SELECT rank, record, digest FROM seats ORDER BY rank", 0,
                     wire::decode_seat, "a rank's seat");
  }

  Status load_remarks(std::vector<wire::Remarked>& remarks) {
    const Status read =
        load_list(remarks, "SELECT number, record, digest FROM remarks ORDER BY number LIMIT 1000",
                  1, wire::decode_remark, "a remark");
    return read && remarks.size() > wire::kMaxRemarks ? damaged("a remark") : read;
  }

  // The records that `sql` gives with their numbers, which count from `first`, and their digests.
  template <class Record>
  Status load_list(std::vector<Record>& list, const char* sql, std::size_t first,
                   Result<Record> (*decode)(std::string_view), const char* what) {
    Statement query(db, sql);
    int got = query.step();
    for (; got == SQLITE_ROW; got = query.step()) {
      const std::string bytes = query.bytes(1);
      auto record = decode(bytes);
      const bool is_next = query.number(0) == static_cast<std::int64_t>(first + list.size());
      if (!is_next || query.number(2) != digest_of(bytes)) return damaged(what);
      if (!record) return unreadable(what);
      list.push_back(std::move(*record));
    }
    return got == SQLITE_DONE ? Status{} : failure("read");
  }

  Status load_kept(std::vector<wire::KeyValue>& kept) {
    Statement query(db, "SELECT key, value, version, digest FROM kept");
    int got = query.step();
    for (; got == SQLITE_ROW; got = query.step()) {
      kept.push_back(
          {query.bytes(0), query.bytes(1), static_cast<wire::KeyVersion>(query.number(2))});
      if (query.number(3) != digest_of(kept.back())) return damaged("a key-value");
    }
    return got == SQLITE_DONE ? Status{} : failure("read");
  }

  Status load_writers(std::vector<wire::Writer>& writers) {
    Statement query(db, "SELECT writer, id, version FROM writers");
    int got = query.step();
    for (; got == SQLITE_ROW; got = query.step()) {
      const auto number = [&](int column) {
        return static_cast<std::uint64_t>(query.number(column));
      };
      writers.push_back({number(0), number(1), number(2)});
    }
    return got == SQLITE_DONE ? Status{} : failure("read");
  }

  // Makes all changes of `write` in one transaction, or none of them.
  template <class Write>
  Status transact(Write write) {
    if (const auto begun = execute("BEGIN IMMEDIATE", "write"); !begun) return begun;
    Status done = write();
    if (done) done = execute("COMMIT", "write");
    if (!done) (void)execute("ROLLBACK", "write");
    return done;
  }

  Result<wire::Memory> load() override {
    wire::Memory memory;
    Status read = load_formation(memory.formation);
    if (read) read = load_kept(memory.kept);
    if (read) read = load_writers(memory.writers);
    if (read) read = load_remarks(memory.remarks);
    if (!read) return read.error();
    return memory;
  }

  Status store(const wire::Changes& changes) override {
    return transact([&] { return put(changes); });
  }

  Status begin(const wire::Formation& formation) override {
    return transact([&]() -> Status {
      const char* const all =
          "DELETE FROM seats; DELETE FROM kept; DELETE FROM writers; DELETE FROM remarks";
      if (const auto gone = execute(all, "write"); !gone) return gone;
      return put(formation);
    });
  }

  [[nodiscard]] bool is_in_memory() const override {
    struct statfs about {};
    return ::statfs(path.c_str(), &about) == 0 && about.f_type == TMPFS_MAGIC;
  }

  Status remove() override {
    sqlite3_close(std::exchange(db, nullptr));
    for (const char* suffix : {"", "-wal", "-shm"}) ::unlink(cat(path, suffix).c_str());
    return {};
  }

  [[nodiscard]] std::string name() const override { return cat("the journal ", path); }

  std::string path;
  sqlite3* db = nullptr;
};

}  // namespace

Result<std::unique_ptr<Journal>> Journal::open(const std::string& path, const std::string& job) {
  if (const auto made = make_file(path); !made) return made.error();
  auto journal = std::make_unique<SqliteJournal>(path);
  if (const auto connected = journal->connect(); !connected) return connected.error();
  const auto known = journal->recognise();
  if (!known) return known.error();
  for (const char* sql : {"PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL"}) {
    if (const auto set = journal->execute(sql, "open"); !set) return set.error();
  }
  const auto ready = *known ? journal->check_job(job) : journal->create(job);
  if (!ready) return ready.error();
  return std::unique_ptr<Journal>(std::move(journal));
}

}  // namespace holdfast::io
