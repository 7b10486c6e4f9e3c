#include "runtime/worker/recording.h"

#include <fcntl.h>

#include <cstring>
#include <utility>

#include "base/digest.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/futex.h"
#include "os/shared_file.h"

namespace holdfast::runtime {
namespace {

constexpr std::uint64_t kMagic = 0x31'65'6c'70'6d'61'53'68;  // "hSample1"
constexpr std::uint64_t kPageBytes = 4096;
constexpr timespec kLongestSleep{.tv_sec = 0, .tv_nsec = 200'000'000};
constexpr std::uint32_t kNote = 0;
constexpr std::uint32_t kFirstExchange = 1;  // And the kinds from it on.
constexpr std::uint32_t kLastExchange =
    kFirstExchange + static_cast<std::uint32_t>(collective::ExchangeKind::kBarrier);
constexpr std::uint32_t kNoted = kLastExchange + 1;  // An exchange of an account: a note.
constexpr std::uint32_t kOtherwise = kNoted + 1;
constexpr std::uint64_t kMostNotes = 10'000'000;

struct Entry {
  std::uint32_t kind = kNote;
  std::uint32_t name_bytes = 0;
  std::uint64_t digest = 0;
  std::uint64_t got_bytes = 0;
};

std::string page_path(const std::string& job_folder, Rank rank) {
  return cat(job_folder, "/sample-", rank);
}

}  // namespace

std::string rehearsal_folder(const std::string& job_folder, Rank rank) {
  return cat(job_folder, "/rehearsal-", rank);
}
std::string recorded_state(const std::string& rehearsal_folder) {
  return cat(rehearsal_folder, "/state");
}

std::string recording_path(const std::string& rehearsal_folder) {
  return cat(rehearsal_folder, "/recording");
}

// ---- The page -----------------------------------------------------------------------------------

struct SamplePage::Page {
  std::uint64_t magic;
  std::uint64_t run_id;
  Rank rank;
  Rank local_rank;
  std::int32_t world_size;
  std::atomic<std::uint32_t> state;
  std::atomic<Version> version;
};

SamplePage::Page& SamplePage::page() const {
  return *mapping_.as<Page>(0);
}

Result<SamplePage> SamplePage::make(const Identity& identity) {
  const std::string path = page_path(identity.directory, identity.rank);
  auto mapping = os::make_file(path, kPageBytes);
  if (!mapping) return mapping.error();
  SamplePage made(*std::move(mapping));
  Page& page = made.page();
  page.magic = kMagic;
  page.run_id = identity.run_id;
  page.rank = identity.rank;
  page.local_rank = identity.local_rank;
  page.world_size = identity.world_size;
  if (const auto named = os::give_name(path); !named) return named.error();
  return made;
}

Result<SamplePage> SamplePage::of(const std::string& job_folder, Rank rank) {
  const std::string path = page_path(job_folder, rank);
  auto found = os::find_file(path, os::Access::kWrite);
  if (!found) return found.error();
  if (!found->file || found->bytes != kPageBytes) {
    return Error{Blame::kWorld, cat("rank ", rank, " shows no step here: there is no ", path)};
  }
  auto mapping = os::map_file(*found, os::Access::kWrite, path);
  if (!mapping) return mapping.error();
  SamplePage page(*std::move(mapping));
  const bool fits =
      page.page().magic == kMagic && page.page().rank == rank && page.page().world_size > rank;
  if (!fits) return Error{Blame::kPeer, cat(path, " is damaged, or of another release")};
  return page;
}

Identity SamplePage::identity() const {
  const Page& p = page();
  return {.rank = p.rank,
          .local_rank = p.local_rank,
          .world_size = p.world_size,
          .run_id = p.run_id,
          .directory = {}};
}
Sample SamplePage::state() const {
  return static_cast<Sample>(page().state.load(std::memory_order_acquire));
}
Version SamplePage::version() const {
  return page().version.load();
}
void SamplePage::set(Sample state, Version version) {
  page().version.store(version);
  page().state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
  os::wake_all(page().state);
}
void SamplePage::sleep(Sample while_it_is) const {
  os::sleep_on(page().state, static_cast<std::uint32_t>(while_it_is), &kLongestSleep);
}

// ---- The recording ------------------------------------------------------------------------------

std::string name_of_exchange(const std::string& group, std::size_t index,
                             const collective::Exchange& exchange) {
  return cat("what it gives to exchange ", index + 1, " of ",
             group.empty() ? "all ranks" : cat("the group '", group, "'"), " (a ",
             collective::name(exchange.kind), " of ", exchange.got.size(), " bytes)");
}

std::uint64_t digest_of(const collective::Exchange& exchange) {
  return digest(std::as_bytes(std::span(&exchange.given, 1)), exchange.request);
}

Result<RecordingWriter> RecordingWriter::make(const std::string& path, std::uint64_t limit) {
  auto file = os::open_own_file(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC);
  if (!file) return file.error();
  return RecordingWriter(*std::move(file), limit);
}

void RecordingWriter::write(std::uint32_t kind, std::string_view name, std::uint64_t digest,
                            std::span<const std::byte> got) {
  const std::uint64_t bytes = sizeof(Entry) + name.size() + got.size();
  is_whole_ = is_whole_ && bytes <= left_;
  if (!is_whole_) return;
  left_ -= bytes;
  const Entry entry{kind, static_cast<std::uint32_t>(name.size()), digest, got.size()};
  const std::string_view head{reinterpret_cast<const char*>(&entry), sizeof entry};
  const std::string_view body{reinterpret_cast<const char*>(got.data()), got.size()};
  is_whole_ = os::write_all(file_.get(), cat(head, name)) && os::write_all(file_.get(), body);
}

void RecordingWriter::note(std::string_view name, std::uint64_t digest) {
  write(kNote, name, digest, {});
}
void RecordingWriter::exchange(std::string_view group, const collective::Exchange& exchange) {
  write(kFirstExchange + static_cast<std::uint32_t>(exchange.kind), group, digest_of(exchange),
        exchange.got);
}

void RecordingWriter::account(const understudy::Account& account) {
  for (const auto& [name, digest] : account.notes) note(name, digest);
  for (const auto& [group, exchanges] : account.exchanges) {
    for (const auto& [name, digest] : exchanges) {
      write(kNoted, group, digest, std::as_bytes(std::span(name)));
    }
  }
  if (!account.otherwise.empty()) write(kOtherwise, account.otherwise, 0, {});
}

Result<Recording> read_recording(const std::string& path) {
  const auto found = os::find_file(path, os::Access::kRead);
  if (!found) return found.error();
  const Error damaged{Blame::kPeer, cat(path, " is damaged, or of another release")};
  if (!found->file) return damaged;
  Recording recording;
  if (found->bytes == 0) return recording;
  auto mapping = os::map_file(*found, os::Access::kRead, path);
  if (!mapping) return mapping.error();
  recording.memory = *std::move(mapping);
  std::span<const std::byte> left = recording.memory.bytes();
  for (std::uint64_t count = 0; !left.empty(); ++count) {
    Entry entry;
    if (left.size() < sizeof entry || count == kMostNotes) return damaged;
    std::memcpy(&entry, left.data(), sizeof entry);
    left = left.subspan(sizeof entry);
    if (entry.kind > kOtherwise || entry.name_bytes > left.size() ||
        entry.got_bytes > left.size() - entry.name_bytes) {
      return damaged;
    }
    const std::string name(reinterpret_cast<const char*>(left.data()), entry.name_bytes);
    const auto got = left.subspan(entry.name_bytes, entry.got_bytes);
    left = left.subspan(entry.name_bytes + entry.got_bytes);
    if (entry.kind == kNote) {
      recording.account.notes.push_back({name, entry.digest});
      continue;
    }
    if (entry.kind == kOtherwise) {
      recording.account.otherwise = name;
      continue;
    }
    auto& exchanges = recording.account.exchanges[name];
    if (entry.kind == kNoted) {
      exchanges.push_back({{reinterpret_cast<const char*>(got.data()), got.size()}, entry.digest});
      continue;
    }
    const auto kind = static_cast<collective::ExchangeKind>(entry.kind - kFirstExchange);
    // Only its size is asked for.
    const std::span<std::byte> size{const_cast<std::byte*>(got.data()), got.size()};
    exchanges.push_back(
        {name_of_exchange(name, exchanges.size(), {.kind = kind, .got = size}), entry.digest});
    recording.got[name].push_back(got);
  }
  return recording;
}

}  // namespace holdfast::runtime
