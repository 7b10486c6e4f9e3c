#include "io/etcd_journal.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/number.h"
#include "base/text.h"
#include "io/loop.h"
#include "os/random_bits.h"
#include "wire/codec.h"

namespace holdfast::io {
namespace {

using Operations = std::vector<EtcdOperation>;
using Kind = EtcdOperation::Kind;

constexpr Duration kLimit = std::chrono::seconds(10);  // For one transaction.
constexpr std::size_t kBlockRanks = 100;               // Ranks: all of 10,000 are 100 keys.
constexpr std::size_t kInline = std::size_t{256} << 10;
// Bytes of an entry besides its value and its name: the rest of the key, and numbers.
constexpr std::size_t kBeside = 400;
constexpr std::size_t kPart = std::size_t{1} << 20;
constexpr std::int64_t kPage = 64;  // Keys in one answer; fewer, if answers are too slow.

std::uint64_t seal_of(std::string_view bytes, std::uint64_t seed = 0) {
  return digest(std::as_bytes(std::span(bytes.data(), bytes.size())), seed);
}

template <class Number>
void append_number(std::string& out, Number number) {
  for (std::size_t i = 0; i < sizeof(number); ++i) {
    out += static_cast<char>(static_cast<std::uint64_t>(number) >> (8 * i) & 255U);
  }
}

// Reads what append_number() has written, from the front. Nothing: it is too short.
template <class Number>
std::optional<Number> take_number(std::string_view& bytes) {
  if (bytes.size() < sizeof(Number)) return std::nullopt;
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    number |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  bytes.remove_prefix(sizeof(Number));
  return static_cast<Number>(number);
}

// The bytes with their digest before them. It covers the key, too: else the value of another key
// would not be noticed.
std::string sealed(std::string_view key, std::string_view bytes) {
  std::string value;
  value.reserve(bytes.size() + 8);
  append_number(value, seal_of(bytes, seal_of(key)));
  value += bytes;
  return value;
}

std::optional<std::string_view> opened(const EtcdEntry& entry) {
  std::string_view bytes = entry.value;
  const auto seal = take_number<std::uint64_t>(bytes);
  return seal && *seal == seal_of(bytes, seal_of(entry.key)) ? std::optional(bytes) : std::nullopt;
}

std::size_t size_of(const Operations& operations) {
  std::size_t bytes = 0;
  for (const auto& each : operations) {
    bytes += each.key.size() + each.end.size() + each.value.size() + 32;
  }
  return bytes;
}

bool fits(const Operations& operations) {
  return operations.size() <= kEtcdOperations && size_of(operations) <= kEtcdBytes;
}

class EtcdJournal : public Journal {
 public:
  EtcdJournal(Etcd etcd, const std::string& job, std::int64_t created)
      : etcd_(std::move(etcd)),
        job_(job),
        fence_{etcd_scheduler(job), created},
        head_(etcd_head(job)),
        turn_key_(cat(etcd_prefix(job), "journal/turn")),
        all_(cat(etcd_prefix(job), "journal/")) {}

  Result<wire::Memory> load() override {
    auto entries = read_all();
    if (!entries) return entries.error();
    wire::Memory memory;
    Status read = load_formation(*entries, memory.formation);
    if (read) read = load_kept(*entries, memory.kept);
    if (read) read = load_writers(*entries, memory.writers);
    if (read) read = load_remarks(*entries, memory.remarks);
    if (!read) return read.error();
    return memory;
  }

  Status store(const wire::Changes& changes) override {
    Plan plan;
    Cache next = cache_;
    if (changes.formation) set_formation(*changes.formation, next);
    for (const auto& [rank, seat] : changes.seats) {
      const auto at = static_cast<std::size_t>(rank);
      if (at >= next.roster.size()) next.roster.resize(at + 1);
      next.roster[at] = wire::encode(seat);
    }
    const bool whole = changes.formation && !changes.formation->roster.empty();
    put_seats(whole, changes.seats, next, plan);
    if (changes.formation || next.epoch != cache_.epoch) plan.at_once.push_back(head_of(next));
    for (const auto& pair : changes.kept) put_kept(pair, next, plan);
    for (const auto& last : changes.writers) put_writer(last, plan);
    for (const auto& [number, remark] : changes.remarks) {
      const std::string key = remark_key(number);
      plan.at_once.push_back({Kind::kPut, key, "", sealed(key, wire::encode(remark))});
    }
    return carry_out(std::move(plan), std::move(next));
  }

  // Seats that put_seats() writes in the last transaction take half of it at most.
  [[nodiscard]] bool takes_at_once(const wire::Changes& first,
                                   const wire::Changes& later) const override {
    std::size_t keys = 0;
    std::size_t bytes = 0;
    bool seats = false;
    for (const auto* each : {&first, &later}) {
      seats = seats || each->formation || !each->seats.empty();
      if (each->formation) {
        wire::Formation head = *each->formation;
        head.roster.clear();
        bytes += wire::encode(head).size();
      }
      for (const auto& pair : each->kept) {
        keys += cache_.parts.contains(pair.key) ? 2U : 1U;
        bytes += std::min(pair.value.size(), kInline) + pair.key.size() + kBeside;
      }
      keys += each->writers.size();
      bytes += each->writers.size() * kBeside;
      keys += each->remarks.size();
      for (const auto& [number, remark] : each->remarks) {
        bytes += wire::encode(remark).size() + kBeside;
      }
    }
    if (seats) {
      keys += kEtcdOperations / 2 + 2;
      bytes += kEtcdBytes / 2 + kBeside;
    }
    return keys <= kEtcdOperations && bytes <= kEtcdBytes;
  }

  Status begin(const wire::Formation& formation) override {
    Plan plan;
    Cache next{.epoch = cache_.epoch};
    set_formation(formation, next);
    for (const char* what : {"kept/", "parts/", "writers/", "remarks/"}) {
      plan.at_once.push_back({Kind::kDelete, all_ + what, end_of(all_ + what)});
    }
    put_seats(true, {}, next, plan);
    // Deletes the seats of another run, whose epochs are not known.
    const std::string seats = cat(all_, "seats/");
    plan.at_once.push_back({Kind::kDelete, cat(seats, hex(next.epoch + 1)), end_of(seats)});
    plan.at_once.push_back(head_of(next));
    return carry_out(std::move(plan), std::move(next));
  }

  Status remove() override { return transact({{Kind::kDelete, all_, end_of(all_)}}, true); }

  [[nodiscard]] std::string name() const override { return cat("the keys ", all_, " in etcd"); }

 private:
  // What etcd holds, as far as it is needed for the next write.
  struct Cache {
    std::string formation;            // Without its roster.
    std::vector<std::string> roster;  // Encoded.
    std::uint64_t epoch = 0;          // Part of the seats' keys: a new roster has a new one.
    // Of each key-value with parts: the prefix of their keys.
    std::map<std::string, std::string> parts;
  };
  struct Plan {
    Operations before;   // Written to keys that nobody reads yet.
    Operations at_once;  // Then written in one transaction, which puts all of it in force.
  };

  // A transaction requires that the key `turn` is as the one before has left it, and changes that
  // key. So a copy of a transaction that reaches etcd late, through another member, changes
  // nothing. `last`: no transaction comes after it.
  Status transact(Operations operations, bool last = false) {
    if (!turn_) {
      const auto known = read_turn();
      if (!known) return known.error();
      turn_ = known->changed;
    }
    const std::string mark = hex(os::random_bits());
    if (!last) operations.push_back({Kind::kPut, turn_key_, "", mark});
    const EtcdCondition at_its_turn{.key = turn_key_, .changed = *turn_};
    const auto answer =
        etcd_.transact({{fence_, at_its_turn}, std::move(operations)}, Loop::now() + kLimit);
    if (!answer) return answer.error();
    if (answer->done) {
      turn_ = answer->revision;
      return {};
    }
    // A first copy of the transaction may have been done, and its answer lost.
    const auto now = read_turn();
    if (!now) return now.error();
    const bool all_gone = last && now->changed == 0;
    if (now->mark == mark || all_gone) {
      turn_ = now->changed;
      return {};
    }
    return Error{Blame::kWorld,
                 cat("this scheduler's lease has ended: etcd has its key ", fence_.key,
                     " no more, and another scheduler may serve the job")};
  }

  struct Turn {
    std::string mark;
    std::int64_t changed = 0;  // 0: there was none.
  };
  Result<Turn> read_turn() {
    const auto answer =
        etcd_.transact({{}, {{.kind = Kind::kRange, .key = turn_key_}}}, Loop::now() + kLimit);
    if (!answer) return answer.error();
    const auto& entries = answer->ranges.front().entries;
    if (entries.empty()) return Turn{};
    return Turn{entries.front().value, entries.front().changed};
  }

  Status carry_out(Plan plan, Cache next) {
    if (!fits(plan.at_once)) {
      return Error{Blame::kUser,
                   cat("what has to be stored at once is too large for etcd: ", plan.at_once.size(),
                       " keys of ", size_of(plan.at_once), " bytes; ", kEtcdOperations, " keys of ",
                       kEtcdBytes, " bytes can be")};
    }
    Operations some;
    for (auto& each : plan.before) {
      some.push_back(std::move(each));
      if (fits(some)) continue;
      Operations last{std::move(some.back())};
      some.pop_back();
      if (const auto done = transact(std::exchange(some, std::move(last))); !done) return done;
    }
    if (!some.empty()) {
      if (const auto done = transact(std::move(some)); !done) return done;
    }
    if (!plan.at_once.empty()) {
      if (const auto done = transact(std::move(plan.at_once)); !done) return done;
    }
    cache_ = std::move(next);
    return {};
  }

  void set_formation(wire::Formation formation, Cache& next) {
    const auto roster = std::exchange(formation.roster, {});
    next.formation = wire::encode(formation);
    if (roster.empty()) return;
    next.roster.clear();
    for (const auto& seat : roster) next.roster.push_back(wire::encode(seat));
  }

  [[nodiscard]] EtcdOperation head_of(const Cache& next) const {
    std::string bytes;
    append_number(bytes, next.epoch);
    append_number(bytes, static_cast<std::uint32_t>(next.roster.size()));
    bytes += next.formation;
    return {Kind::kPut, head_, "", sealed(head_, bytes)};
  }

  [[nodiscard]] EtcdOperation block_of(const Cache& next, std::size_t block) const {
    std::string bytes;
    const std::size_t end = std::min(next.roster.size(), (block + 1) * kBlockRanks);
    for (std::size_t rank = block * kBlockRanks; rank < end; ++rank) {
      append_number(bytes, static_cast<std::uint32_t>(next.roster[rank].size()));
      bytes += next.roster[rank];
    }
    const std::string key = cat(all_, "seats/", hex(next.epoch), '/', hex(block));
    return {Kind::kPut, key, "", sealed(key, bytes)};
  }

  // Writes the changed seats in place, if they are few. Else writes the whole roster under new
  // keys, which the head names.
  void put_seats(bool whole, const std::map<Rank, wire::Seat>& changed, Cache& next, Plan& plan) {
    Operations blocks;
    if (!whole) {
      std::set<std::size_t> touched;
      for (const auto& [rank, seat] : changed)
        touched.insert(static_cast<std::size_t>(rank) / kBlockRanks);
      for (const auto block : touched) blocks.push_back(block_of(next, block));
      const bool grown = next.roster.size() != cache_.roster.size();
      if (!grown && blocks.size() < kEtcdOperations / 2 && size_of(blocks) < kEtcdBytes / 2) {
        std::move(blocks.begin(), blocks.end(), std::back_inserter(plan.at_once));
        return;
      }
      blocks.clear();
    }
    ++next.epoch;
    for (std::size_t block = 0; block * kBlockRanks < next.roster.size(); ++block) {
      blocks.push_back(block_of(next, block));
    }
    const bool few = blocks.size() < kEtcdOperations / 2 && size_of(blocks) < kEtcdBytes / 2;
    auto& into = few ? plan.at_once : plan.before;
    std::move(blocks.begin(), blocks.end(), std::back_inserter(into));
    const std::string seats = cat(all_, "seats/");
    plan.at_once.push_back({Kind::kDelete, seats, cat(seats, hex(next.epoch))});
  }

  void put_kept(const wire::KeyValue& pair, Cache& next, Plan& plan) {
    const std::string key = cat(all_, "kept/", pair.key);
    std::string bytes;
    append_number(bytes, pair.version);
    if (const auto former = next.parts.extract(pair.key); !former.empty()) {
      plan.at_once.push_back({Kind::kDelete, former.mapped(), end_of(former.mapped())});
    }
    if (pair.value.size() <= kInline) {
      append_number(bytes, std::uint64_t{0});
      bytes += pair.value;
    } else {
      const std::uint64_t number = os::random_bits() | 1U;
      const std::string folder = cat(all_, "parts/", hex(number), '/');
      for (std::size_t at = 0; at < pair.value.size(); at += kPart) {
        const std::string part = cat(folder, hex(at / kPart));
        plan.before.push_back({Kind::kPut, part, "", sealed(part, pair.value.substr(at, kPart))});
      }
      append_number(bytes, number);
      append_number(bytes, seal_of(pair.value));
      next.parts[pair.key] = folder;
    }
    plan.at_once.push_back({Kind::kPut, key, "", sealed(key, bytes)});
  }

  [[nodiscard]] std::string remark_key(std::uint64_t number) const {
    return cat(all_, "remarks/", hex(number));
  }

  void put_writer(const wire::Writer& last, Plan& plan) {
    const std::string key = cat(all_, "writers/", hex(last.writer));
    std::string bytes;
    append_number(bytes, last.id);
    append_number(bytes, last.version);
    plan.at_once.push_back({Kind::kPut, key, "", sealed(key, bytes)});
  }

  // All entries of the journal as of one revision, by key.
  Result<std::map<std::string, EtcdEntry>> read_all() {
    std::map<std::string, EtcdEntry> all;
    std::string from = all_;
    std::int64_t revision = 0;
    std::int64_t page = kPage;
    while (true) {
      auto answer = etcd_.transact({{},
                                    {{.kind = Kind::kRange,
                                      .key = from,
                                      .end = end_of(all_),
                                      .limit = page,
                                      .revision = revision}}},
                                   Loop::now() + kLimit);
      if (!answer && page > 1) {
        page /= 8;  // Values may be large, and the way to etcd slow.
        continue;
      }
      if (!answer) return answer.error();
      if (revision == 0) revision = answer->revision;
      auto& range = answer->ranges.front();
      for (auto& entry : range.entries) {
        from = cat(entry.key, '\0');
        all[entry.key] = std::move(entry);
      }
      if (!range.more || range.entries.empty()) return all;
    }
  }
  using All = std::map<std::string, EtcdEntry>;

  [[nodiscard]] Error damaged(std::string_view what) const {
    return Error{Blame::kWorld, cat(what, " of the job in etcd is damaged; delete all keys below ",
                                    etcd_prefix(job_), " (etcdctl del --prefix) to begin it anew")};
  }

  [[nodiscard]] Error unreadable(std::string_view what) const {
    return Error{Blame::kUser, cat(what,
                                   " of the job in etcd can not be read by this version of "
                                   "Holdfast; go on with the one that wrote it, or delete all keys "
                                   "below ",
                                   etcd_prefix(job_), " (etcdctl del --prefix) to begin it anew")};
  }

  Status load_formation(const All& all, std::optional<wire::Formation>& formation) {
    cache_ = {};
    const auto head = all.find(head_);
    if (head == all.end()) return {};
    auto bytes = opened(head->second);
    if (!bytes) return damaged("the formation");
    const auto epoch = take_number<std::uint64_t>(*bytes);
    const auto ranks = take_number<std::uint32_t>(*bytes);
    if (!epoch || !ranks) return damaged("the formation");
    auto decoded = wire::decode_formation(*bytes);
    if (!decoded) return unreadable("the formation");
    if (decoded->job != job_) return damaged("the formation");
    cache_.epoch = *epoch;
    cache_.formation = *bytes;
    formation = *std::move(decoded);
    for (std::size_t block = 0; block * kBlockRanks < *ranks; ++block) {
      if (const auto got = load_block(all, block, formation->roster); !got) return got;
    }
    return formation->roster.size() == *ranks ? Status{} : damaged("a rank's seat");
  }

  Status load_block(const All& all, std::size_t block, std::vector<wire::Seat>& roster) {
    const auto found = all.find(cat(all_, "seats/", hex(cache_.epoch), '/', hex(block)));
    auto bytes = found == all.end() ? std::nullopt : opened(found->second);
    if (!bytes) return damaged("a rank's seat");
    while (!bytes->empty()) {
      const auto size = take_number<std::uint32_t>(*bytes);
      if (!size || *size > bytes->size()) return damaged("a rank's seat");
      auto seat = wire::decode_seat(bytes->substr(0, *size));
      if (!seat) return unreadable("a rank's seat");
      cache_.roster.emplace_back(bytes->substr(0, *size));
      roster.push_back(*std::move(seat));
      bytes->remove_prefix(*size);
    }
    return {};
  }

  Status load_kept(const All& all, std::vector<wire::KeyValue>& kept) {
    const std::string folder = cat(all_, "kept/");
    for (auto each = all.lower_bound(folder); each != all.end() && each->first.starts_with(folder);
         ++each) {
      auto bytes = opened(each->second);
      const auto version = bytes ? take_number<wire::KeyVersion>(*bytes) : std::nullopt;
      const auto parts = version ? take_number<std::uint64_t>(*bytes) : std::nullopt;
      if (!parts) return damaged("a key-value");
      wire::KeyValue pair{each->first.substr(folder.size()), std::string(*bytes), *version};
      if (*parts != 0) {
        auto whole = join_parts(all, *parts, *bytes);
        if (!whole) return damaged("a key-value");
        pair.value = *std::move(whole);
        cache_.parts[pair.key] = cat(all_, "parts/", hex(*parts), '/');
      }
      kept.push_back(std::move(pair));
    }
    return {};
  }

  // `seal`: the digest of the whole.
  std::optional<std::string> join_parts(const All& all, std::uint64_t number,
                                        std::string_view seal) {
    const std::string folder = cat(all_, "parts/", hex(number), '/');
    std::string value;
    for (auto each = all.lower_bound(folder); each != all.end() && each->first.starts_with(folder);
         ++each) {
      const auto bytes = opened(each->second);
      if (!bytes) return std::nullopt;
      value += *bytes;
    }
    const auto right = take_number<std::uint64_t>(seal);
    return right && *right == seal_of(value) ? std::optional(std::move(value)) : std::nullopt;
  }

  Status load_writers(const All& all, std::vector<wire::Writer>& writers) {
    const std::string folder = cat(all_, "writers/");
    for (auto each = all.lower_bound(folder); each != all.end() && each->first.starts_with(folder);
         ++each) {
      auto bytes = opened(each->second);
      const auto id = bytes ? take_number<std::uint64_t>(*bytes) : std::nullopt;
      const auto version = id ? take_number<std::uint64_t>(*bytes) : std::nullopt;
      std::uint64_t writer = 0;
      const std::string name = each->first.substr(folder.size());
      const bool named = std::sscanf(name.c_str(), "%16lx", &writer) == 1 && name == hex(writer);
      if (!version || !named) return damaged("a writer");
      writers.push_back({writer, *id, *version});
    }
    return {};
  }

  Status load_remarks(const All& all, std::vector<wire::Remarked>& remarks) {
    const std::string folder = cat(all_, "remarks/");
    for (auto each = all.lower_bound(folder); each != all.end() && each->first.starts_with(folder);
         ++each) {
      const auto bytes = opened(each->second);
      const bool is_next = each->first == remark_key(remarks.size() + 1);
      if (!bytes || !is_next || remarks.size() == wire::kMaxRemarks) return damaged("a remark");
      auto remark = wire::decode_remark(*bytes);
      if (!remark) return unreadable("a remark");
      remarks.push_back(*std::move(remark));
    }
    return {};
  }

  Etcd etcd_;
  const std::string job_;
  const EtcdCondition fence_;
  const std::string head_;
  const std::string turn_key_;
  const std::string all_;
  std::optional<std::int64_t> turn_;  // The revision of this journal's newest write.
  Cache cache_;
};

}  // namespace

std::string etcd_prefix(const std::string& job) {
  return cat("/holdfast/", job, '/');
}
std::string etcd_scheduler(const std::string& job) {
  return cat(etcd_prefix(job), "scheduler");
}
std::string etcd_head(const std::string& job) {
  return cat(etcd_prefix(job), "journal/head");
}

std::optional<std::uint64_t> run_in_head(const EtcdEntry& head) {
  auto bytes = opened(head);
  const bool whole =
      bytes && take_number<std::uint64_t>(*bytes) && take_number<std::uint32_t>(*bytes);
  if (!whole) return std::nullopt;
  const auto formation = wire::decode_formation(*bytes);
  return formation ? std::optional(formation->run_id) : std::nullopt;
}

std::unique_ptr<Journal> make_etcd_journal(Etcd etcd, const std::string& job,
                                           std::int64_t created) {
  return std::make_unique<EtcdJournal>(std::move(etcd), job, created);
}

}  // namespace holdfast::io
