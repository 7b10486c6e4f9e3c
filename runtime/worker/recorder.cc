#include "runtime/worker/recorder.h"

#include <utility>

namespace holdfast::runtime {

Result<std::shared_ptr<Recorder>> Recorder::make(const Identity& identity, std::uint64_t limit) {
  auto page = SamplePage::make(identity);
  if (!page) return page.error();
  return std::shared_ptr<Recorder>(
      new Recorder(*std::move(page), rehearsal_folder(identity.directory, identity.rank), limit));
}

// Whoever rehearses may be gone, and its folder with it: then nothing is recorded.
bool Recorder::begin(Version version, const ShowState& show_state) {
  if (page_.state() != Sample::kWanted) return false;
  page_.set(Sample::kRecording);
  auto writer = RecordingWriter::make(recording_path(folder_), limit_);
  if (!writer || !show_state(recorded_state(folder_))) {
    page_.set(Sample::kNone);
    return false;
  }
  version_ = version;
  const std::lock_guard lock(mutex_);
  writer_ = *std::move(writer);
  return true;
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
