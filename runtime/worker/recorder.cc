#include "runtime/worker/recorder.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "os/files.h"

namespace holdfast::runtime {

Result<std::shared_ptr<Recorder>> Recorder::make(const Identity& identity, std::uint64_t limit) {
  auto page = SamplePage::make(identity);
  if (!page) return page.error();
  return std::shared_ptr<Recorder>(
      new Recorder(*std::move(page), rehearsal_folder(identity.directory, identity.rank), limit));
}

bool Recorder::begin(Version version, const ShowState& show_state) {
  if (page_.state() != Sample::kWanted) return false;
  page_.set(Sample::kRecording);
  if (begin_writing(show_state)) {
    version_ = version;
    return true;
  }
  page_.set(Sample::kNone);
  return false;
}

// Whoever rehearses may be gone, and its folder with it: then nothing is recorded. The training
// needs what is free as well: it gets no less than three quarters of that.
bool Recorder::begin_writing(const ShowState& show_state) try {
  if (!show_state(recorded_state(folder_))) return false;
  const std::uint64_t limit = std::min(limit_, os::free_bytes(folder_) / 4);
  auto writer = RecordingWriter::make(recording_path(folder_), limit);
  if (!writer) return false;
  const std::lock_guard lock(mutex_);
  writer_ = *std::move(writer);
  return true;
} catch (const std::exception&) {  // No memory.
  return false;
}

void Recorder::note(std::string_view name, std::uint64_t digest) {
  const std::lock_guard lock(mutex_);
  if (writer_) writer_->note(name, digest);
}

void Recorder::record(const std::string& group, const collective::Exchange& exchange) {
  collective::Exchange compared = exchange;
  if (!compares_) compared.given = 0;
  const std::lock_guard lock(mutex_);
  if (writer_) writer_->exchange(group, compared);
}

collective::Outcome Recorder::play(const std::string&, const collective::Exchange&) {
  return collective::Outcome::kAborted;
}

void Recorder::end(bool is_made) {
  const std::lock_guard lock(mutex_);
  if (!writer_) return;
  const bool is_whole = writer_->is_whole();
  writer_.reset();
  page_.set(!is_whole ? Sample::kTooLarge : is_made ? Sample::kReady : Sample::kWanted, version_);
}

}  // namespace holdfast::runtime
