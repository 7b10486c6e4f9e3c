#include "runtime/worker/rehearsal.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "os/files.h"
#include "os/folder.h"
#include "os/idle.h"

namespace holdfast::runtime {

using understudy::Machine;
using wire::Verdict;

namespace {

constexpr const char* kVerdict = "verdict";
constexpr std::uint64_t kMostFormer = std::uint64_t{1} << 30;

std::string former_path(const std::string& folder) {
  return cat(folder, "/former");
}

}  // namespace

Result<std::shared_ptr<Rehearsal>> Rehearsal::begin(const std::string& job_folder, Rank rank,
                                                    bool goes_on, std::function<void()> see_agent) {
  auto page = SamplePage::of(job_folder, rank);
  if (!page) return page.error();
  Identity identity = page->identity();
  identity.directory = rehearsal_folder(job_folder, rank);
  const auto folder = os::Folder::make(identity.directory);
  if (!folder) return folder.error();
  std::optional<understudy::Account> former;
  if (goes_on) {
    auto read = read_recording(former_path(identity.directory));
    if (!read) return read.error();
    former = std::move(read->account);
  }
  return std::shared_ptr<Rehearsal>(new Rehearsal(*std::move(page), std::move(identity),
                                                  std::move(former), std::move(see_agent)));
}

Machine::Assignments Rehearsal::await_step() {
  // A former process may have ended before it asked.
  if (!goes_on_ || page_.state() != Sample::kReady) page_.set(Sample::kWanted);
  for (;;) {
    const Sample state = page_.state();
    if (state == Sample::kReady) break;
    if (state == Sample::kTooLarge) {
      skip(
          "the exchanges of its step bring more than HOLDFAST_REHEARSAL_BYTES, or than a quarter "
          "of "
          "what is free in /dev/shm");
    }
    if (state == Sample::kNone)
      skip("the rank could not record a step: is there room in /dev/shm?");
    page_.sleep(state);
    see_agent_();
  }
  auto recording = read_recording(recording_path(identity_.directory));
  if (!recording) skip(recording.error().what);
  const std::lock_guard lock(mutex_);
  recording_ = *std::move(recording);
  return machine_.begin(page_.version(), recording_.account);
}

Machine::Assignments Rehearsal::hear(const wire::Message& said) {
  const std::lock_guard lock(mutex_);
  return machine_.hear(said);
}

void Rehearsal::begin_step() {
  const std::lock_guard lock(mutex_);
  is_in_step_ = true;
  own_ = {};
}

void Rehearsal::note(std::string_view name, std::uint64_t digest) {
  const std::lock_guard lock(mutex_);
  own_.notes.push_back({std::string(name), digest});
}

void Rehearsal::arrive() {
  const std::lock_guard lock(mutex_);
  if (!is_in_step_) skip("the program makes a step here that the rank did not show (hf_sample)");
  conclude();
}

void Rehearsal::conclude() {
  if (const auto conclusion = machine_.conclude(own_)) {
    end(wire::name(conclusion->verdict), conclusion->what);
  }
  auto writer = RecordingWriter::make(former_path(identity_.directory), kMostFormer);
  if (!writer) skip(writer.error().what);
  writer->account(own_);
  if (!writer->is_whole()) skip("there is no room to note what the first rehearsal came to");
  end(std::string(wire::kAgain), "");
}

void Rehearsal::record(const std::string&, const collective::Exchange&) {}

// Before its step a rehearsal exchanges nothing, as any successor.
collective::Outcome Rehearsal::play(const std::string& group,
                                    const collective::Exchange& exchange) {
  const std::lock_guard lock(mutex_);
  if (!is_in_step_) return collective::Outcome::kAborted;
  auto& own = own_.exchanges[group];
  const std::size_t index = own.size();
  collective::Exchange compared = exchange;
  if (!compares_) compared.given = 0;
  own.push_back({name_of_exchange(group, index, exchange), digest_of(compared)});
  const auto& all = recording_.account.exchanges;
  const auto rank = all.find(group);
  const bool is_there = rank != all.end() && index < rank->second.size();
  if (!is_there || rank->second[index].name != own[index].name) {
    own_.otherwise = "it exchanges something else";
    conclude();
  }
  const auto got = recording_.got.at(group).at(index);
  if (!got.empty()) std::memcpy(exchange.got.data(), got.data(), got.size());
  return collective::Outcome::kDone;
}

void Rehearsal::skip(const std::string& why) {
  end(wire::name(Verdict::kSkipped), why);
}

void Rehearsal::differ(const std::string& what) {
  const std::lock_guard lock(mutex_);
  own_.otherwise = what;
  conclude();
}

void Rehearsal::end(const std::string& verdict, const std::string& words) {
  const std::string what = printable(words);  // One line.
  const bool begun = machine_.version() != kNoVersion;
  const Version step = begun ? machine_.version() + 1 : 0;
  const auto written = os::write_file_atomically(cat(identity_.directory, "/", kVerdict),
                                                 cat(verdict, '\n', step, '\n', what, '\n'));
  std::fprintf(stderr, "holdfast: the rehearsal of rank %d, step %s: %s%s%s%s\n", identity_.rank,
               begun ? cat(step).c_str() : "unknown", verdict.c_str(), what.empty() ? "" : ": ",
               what.c_str(), written ? "" : " (it could not be written down)");
  std::fflush(stderr);
  os::make_process_ordinary(::getpid());  // Nobody waits long for its end.
  ::_exit(written ? 0 : 1);
}

}  // namespace holdfast::runtime
