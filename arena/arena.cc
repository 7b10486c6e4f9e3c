#include "arena/arena.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "arena/format.h"
#include "arena/head.h"
#include "arena/kernels.h"
#include "arena/slots.h"
#include "base/assert.h"
#include "base/text.h"
#include "os/pool.h"
#include "os/robust_mutex.h"
#include "os/shared_file.h"

namespace holdfast::arena {
namespace {

// Below this many lines (64 KiB of each array) waking another thread costs more than it saves.
constexpr std::uint64_t kLinesWorthAThread = 512;

// Makes a new file of zeros at path + ".new"; from `prepared`, if its size is right.
Result<os::Mapping> zeros(const std::string& path, std::uint64_t bytes, std::uint64_t taken,
                          std::unique_ptr<os::Unnamed> prepared) {
  const bool fits = prepared && prepared->mapping.bytes().size() == bytes;
  if (fits && os::give_draft_name(*prepared, path)) return std::move(prepared->mapping);
  prepared.reset();  // Frees its memory: make_file() may need it.
  return os::make_file(path, bytes, taken);
}

Result<os::Mapping> create(const std::string& path, const Layout& layout, std::uint64_t run_id,
                           std::unique_ptr<os::Unnamed> prepared, Memory memory) {
  const bool all = memory == Memory::kAtOnce;
  const std::uint64_t taken = all ? layout.file_bytes() : layout.private_offset(0);
  Result<os::Mapping> mapping = zeros(path, layout.file_bytes(), taken, std::move(prepared));
  if (!mapping) return mapping;
  const std::string text = layout.to_text();
  auto& header = *mapping->as<Header>(0);
  header.fixed = {.run_id = run_id,
                  .fingerprint = layout.fingerprint(),
                  .layout_bytes = text.size(),
                  .file_bytes = layout.file_bytes()};
  header.fixed.check = check_of(header.fixed);
  header.version = kNoVersion;
  header.staged = kNoVersion;
  std::memcpy(mapping->at(kLayoutOffset), text.data(), text.size());
  for (std::size_t i = 0; i < kSlots; ++i)
    os::init_robust(mapping->as<Slot>(kSlotsOffset)[i].alive);
  if (Status named = os::give_name(path); !named) return named.error();
  return mapping;
}

}  // namespace

bool Parts::fit(std::uint64_t bytes) const {
  if (count > kMostParts) return false;
  std::uint64_t end = 0;
  for (const auto& [offset, size] : all()) {
    if (offset < end || offset > bytes || size > bytes - offset) return false;
    end = offset + size;
  }
  return true;
}

struct Arena::State {
  State(std::string its_path, Layout its_layout, os::Mapping its_mapping)
      : path(std::move(its_path)),
        layout(std::move(its_layout)),
        mapped(std::make_shared<const os::Mapping>(std::move(its_mapping))),
        mapping(*mapped),
        guard(guarded(path, layout, mapping)),
        streams(streams_of(mapping, layout)),
        floats(layout.region_floats()),
        private_offsets{layout.private_offset(0), layout.private_offset(1)} {
    std::uint64_t at = 0;
    for (const Entry& entry : layout.parameters) {
      offsets.push_back(at);
      at += (entry.elements + kLineFloats - 1) / kLineFloats * kLineFloats;
    }
  }

  [[nodiscard]] Header& header() const { return *mapping.as<Header>(0); }
  [[nodiscard]] Slot* slots() const { return mapping.as<Slot>(kSlotsOffset); }
  [[nodiscard]] Record& record(Version v) const { return header().records[v % 2]; }
  [[nodiscard]] Parts parts(std::span<const Range> used) const {
    HF_ASSERT(used.size() <= kMostParts);
    Parts parts{.count = used.size(), .ranges = {}};
    std::ranges::copy(used, parts.ranges);
    HF_ASSERT(parts.fit(layout.private_bytes));
    return parts;
  }
  [[nodiscard]] std::span<float> part(float* region, std::size_t i) const {
    HF_ASSERT(region != nullptr && i < offsets.size());
    return {region + offsets[i], layout.parameters[i].elements};
  }
  [[nodiscard]] float* moment_region(std::size_t k) const {
    HF_ASSERT(k < moment_count(layout.optimizer));
    return k == 0 ? streams.m : streams.v;
  }

  // Without a guard a lost page ends the process.
  static os::PageGuard guarded(const std::string& path, const Layout& layout,
                               const os::Mapping& mapping) {
    auto found = os::find_file(path, os::Access::kWrite);
    if (!found || found->bytes != mapping.bytes().size()) return {};
    const std::uint64_t from = layout.gradients_offset();
    return os::PageGuard::over_file(mapping.bytes().subspan(from), std::move(found->file), from,
                                    &mapping.as<Header>(0)->losses);
  }
  // Opens a file that has a version, and finishes an update that a dead process began.
  static Result<Arena> recovered(const std::string& path, ArenaFile file,
                                 Memory memory = Memory::kAtOnce);
  Status recover();
  void split(std::size_t threads);
  void work(std::size_t slot, Version n);

  std::string path;
  Layout layout;
  std::shared_ptr<const os::Mapping> mapped;
  const os::Mapping& mapping;
  os::PageGuard guard;
  Streams streams;
  std::uint64_t floats;
  std::uint64_t private_offsets[2];  // Kept: the layout computes them from all parameters.
  std::vector<std::uint64_t> offsets;
  bool has_holes = false;  // There may be: the arena was opened kAsUsed.
  std::unique_ptr<os::Pool> pool;
};

// Finishes the update that a dead process began. If this process dies in here, the next one goes
// on, because the slots say how far the update got.
Status Arena::State::recover() {
  const SlotLocks locks(slots(), kSlots);
  if (locks.last() == os::Locked::kNot) {
    return Error{Blame::kWorld, cat("The arena ", path,
                                    " is being updated by a process that is alive, though perhaps "
                                    "stopped; end it first.")};
  }
  if (locks.last() == os::Locked::kUnusable) return damaged(path, "has corrupt locks");
  Header& h = header();
  if (Status checked = check_words(h, layout, path); !checked) return checked;
  const Version n = h.version + 1;
  if (h.updating != n) return {};
  for (std::size_t i = 0; i < h.threads; ++i) {
    if (slots()[i].end > floats / kLineFloats) return damaged(path, "has a corrupt progress word");
  }
  for (std::size_t i = 0; i < h.threads; ++i) {
    update_lines(layout.optimizer, record(n).arguments, streams, slots()[i]);
  }
  publish(h.version, n);
  return {};
}

Result<Arena> Arena::State::recovered(const std::string& path, ArenaFile file, Memory memory) {
  auto state = std::make_unique<State>(path, std::move(file.head.layout), std::move(file.mapping));
  state->has_holes = memory == Memory::kAsUsed;
  if (Status recovered = state->recover(); !recovered) return recovered.error();
  return Arena(std::move(state));
}

// Writes into the file which slot updates which lines. So a successor need not split them in the
// same way.
void Arena::State::split(std::size_t threads) {
  const std::uint64_t lines = floats / kLineFloats;
  for (std::size_t i = 0; i < threads; ++i) {
    publish(slots()[i].progress, lines * i / threads * 2);
    slots()[i].end = lines * (i + 1) / threads;
  }
  publish(header().threads, threads);
}

void Arena::State::work(std::size_t slot, Version n) {
  std::optional<SlotLocks<Slot>> lock;
  if (slot > 0) {  // Slot 0 is held by update().
    lock.emplace(slots() + slot, 1);
    HF_ASSERT(lock->all());
  }
  // A thread of a dying process may get here after a successor has finished its lines.
  if (load(header().version) + 1 != n) return;
  update_lines(layout.optimizer, record(n).arguments, streams, slots()[slot]);
}

Result<Arena> Arena::open(const std::string& path, const Layout& layout, std::uint64_t run_id,
                          std::unique_ptr<os::Unnamed> prepared, Memory memory) {
  Result<ArenaFile> file = file_at(path, os::Access::kWrite);
  if (!file) return file.error();
  const Head& head = file->head;
  if (file->found.file && head.has_version_of(run_id)) {
    const std::string different = difference(head.layout, layout);
    if (different.empty()) return State::recovered(path, *std::move(file), memory);
    return Error{Blame::kUser,
                 cat("The arena ", path, " of this run has another layout: ", different,
                     "; continue with the same model and optimizer, or start a new run.")};
  }
  Result<os::Mapping> mapping = create(path, layout, run_id, std::move(prepared), memory);
  if (!mapping) return mapping.error();
  auto state = std::make_unique<State>(path, layout, *std::move(mapping));
  state->has_holes = memory == Memory::kAsUsed;
  return Arena(std::move(state));
}

Result<Arena> Arena::open_held(const std::string& path, std::uint64_t run_id) {
  Result<ArenaFile> file = file_at(path, os::Access::kWrite);
  if (!file) return file.error();
  const Head& head = file->head;
  const bool is_held = file->found.file && head.has_version_of(run_id) &&
                       head.layout.ward != kNoRank && head.layout.parameters.empty();
  if (!is_held) return Error{Blame::kWorld, cat("Nothing of this run is held in ", path, ".")};
  return State::recovered(path, *std::move(file));
}

Result<Arena> Arena::open_left(const std::string& path) {
  Result<ArenaFile> file = file_at(path, os::Access::kWrite);
  if (!file) return file.error();
  const Head& head = file->head;
  const bool is_left =
      file->found.file && head.header.version != kNoVersion && head.layout.ward == kNoRank;
  if (!is_left) return Error{Blame::kWorld, cat("no state is left in ", path)};
  return State::recovered(path, *std::move(file));
}

Arena::Arena(std::unique_ptr<State> state) : state_(std::move(state)) {}
Arena::Arena(Arena&&) noexcept = default;
Arena& Arena::operator=(Arena&&) noexcept = default;
Arena::~Arena() = default;

const std::string& Arena::path() const {
  return state_->path;
}
const Layout& Arena::layout() const {
  return state_->layout;
}
std::uint64_t Arena::run_id() const {
  return state_->header().fixed.run_id;
}
std::shared_ptr<const void> Arena::memory() const {
  return state_->mapped;
}
Version Arena::version() const {
  return load(state_->header().version);
}

Version Arena::staged() const {
  return fresh() ? kNoVersion : load(state_->header().staged);
}

Position Arena::position() const {
  HF_ASSERT(!fresh());
  return state_->record(version()).position;
}

std::span<float> Arena::parameter(std::size_t i) {
  return state_->part(state_->streams.w, i);
}
std::span<float> Arena::moment(std::size_t k, std::size_t i) {
  return state_->part(state_->moment_region(k), i);
}
std::span<float> Arena::gradient(std::size_t i) {
  return state_->part(state_->streams.g, i);
}

std::span<float> Arena::parameters() {
  return {state_->streams.w, state_->floats};
}
std::span<float> Arena::moments(std::size_t k) {
  return {state_->moment_region(k), state_->floats};
}
std::span<float> Arena::gradients() {
  return {state_->streams.g, state_->floats};
}
std::span<std::byte> Arena::private_bytes(Version v) {
  HF_ASSERT(v != kNoVersion);
  return {state_->mapping.at(state_->private_offsets[v % 2]), state_->layout.private_bytes};
}

Status Arena::take(Version v, const Range& range) {
  HF_ASSERT(v != kNoVersion && (Parts{1, {range}}.fit(state_->layout.private_bytes)));
  if (!state_->has_holes || range.bytes == 0) return {};
  const std::uint64_t at = state_->private_offsets[v % 2] + range.offset;
  return os::fill_holes(state_->path, state_->mapping, at, range.bytes);
}

void Arena::clear_private() {
  const std::uint64_t from = state_->private_offsets[0];
  const std::span<std::byte> all = state_->mapping.bytes().subspan(from);
  if (all.empty()) return;
  if (state_->has_holes && os::make_hole(state_->path, from, all.size())) return;
  std::fill(all.begin(), all.end(), std::byte{});
}

std::vector<Range> Arena::used(Version v) const {
  HF_ASSERT(has(v));
  return used_of(state_->header(), state_->layout, v);
}

const os::LossList& Arena::losses() const {
  return state_->header().losses;
}
void Arena::clear_losses(std::uint64_t count) {
  std::atomic_ref(state_->header().losses.count).compare_exchange_strong(count, 0);
}

void Arena::begin(Version v, const Position& position, std::span<const Range> used) {
  HF_ASSERT(fresh() && v != kNoVersion);
  Header& h = state_->header();
  publish(h.updating, 0);
  publish(h.staged, v);
  state_->record(v) = {position, {}, state_->parts(used)};
  publish(h.version, v);
}

void Arena::invalidate() {
  publish(state_->header().version, kNoVersion);
  publish(state_->header().losses.count, 0);
}

void Arena::stage(Version n, const StagedStep& step) {
  HF_ASSERT(!fresh() && n == version() + 1);
  const std::span<std::byte> slot = private_bytes(n);
  HF_ASSERT(step.private_bytes.size() == slot.size());
  unstage();
  if (!slot.empty() && step.private_bytes.data() != slot.data()) {
    std::memcpy(slot.data(), step.private_bytes.data(), slot.size());
  }
  Record& record = state_->record(n);
  record = {step.position, step.arguments, state_->parts(step.used)};
  record.arguments.gradient_scale = gradient_scale(step.arguments.clip_norm, gradients());
  publish(state_->header().staged, n);
}

void Arena::unstage() {
  publish(state_->header().staged, version());
}

void Arena::update(std::size_t threads) {
  HF_ASSERT(threads >= 1 && threads <= kSlots);
  Header& h = state_->header();
  const std::uint64_t worth = state_->floats / kLineFloats / kLinesWorthAThread + 1;
  threads = std::min<std::size_t>(threads, worth);
  if (threads > 1 && (!state_->pool || state_->pool->size() < threads)) {
    state_->pool = std::make_unique<os::Pool>(threads);
  }
  const SlotLocks lock(state_->slots(), 1);
  HF_ASSERT(lock.all() && !fresh() && staged() == version() + 1);
  const Version n = staged();
  state_->split(threads);
  publish(h.updating, n);  // From here on the update is finished, by us or by a successor.
  if (threads == 1) {
    state_->work(0, n);
  } else {
    state_->pool->run(threads, [&](std::size_t slot) { state_->work(slot, n); });
  }
  publish(h.version, n);
}

void Arena::finish() {
  if (!fresh() && staged() != version()) update(1);
}

void Arena::settle(Version v) {
  HF_ASSERT(state_->layout.parameters.empty());  // A step then needs no update.
  if (fresh()) return;
  if (v == version()) unstage();
  if (v == staged()) publish(state_->header().version, v);
}

std::uint64_t Arena::digest() const {
  return digest_of(state_->streams, state_->floats);
}

}  // namespace holdfast::arena
