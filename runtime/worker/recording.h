// Recording: how a rank and a process that rehearses one of its steps come together.
//
// The rank has a page in the job's folder, `sample-<rank>`. Who rehearses asks there for a step.
// The rank records the next one, into two files of the rehearsal's folder, `rehearsal-<rank>`:
// `state` is what it held before the step, as an arena's file; `recording` is what it noted, gave
// and got. All of these are of one host, one user and one release.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "collective/tape.h"
#include "core/understudy/machine.h"
#include "os/fd.h"
#include "os/mapping.h"
#include "runtime/worker/worker.h"

namespace holdfast::runtime {

[[nodiscard]] std::string rehearsal_folder(const std::string& job_folder, Rank rank);
[[nodiscard]] std::string recorded_state(const std::string& rehearsal_folder);
[[nodiscard]] std::string recording_path(const std::string& rehearsal_folder);

// What lies in the page. A futex: whoever waits for the other sleeps on it.
enum class Sample : std::uint32_t { kNone, kWanted, kRecording, kReady, kTooLarge };

class SamplePage {
 public:
  // The rank's own, new: who waits on an older one waits in vain, and is ended by the agent.
  static Result<SamplePage> make(const Identity& identity);
  // That of a rank. Errors: there is none.
  static Result<SamplePage> of(const std::string& job_folder, Rank rank);

  [[nodiscard]] Identity identity() const;  // Without its directory.
  [[nodiscard]] Sample state() const;
  [[nodiscard]] Version version() const;  // Before the step, once it is kReady.
  void set(Sample state, Version version = kNoVersion);
  // Returns once the state is another one, or after a while.
  void sleep(Sample while_it_is) const;

 private:
  struct Page;
  explicit SamplePage(os::Mapping mapping) : mapping_(std::move(mapping)) {}
  [[nodiscard]] Page& page() const;
  os::Mapping mapping_;
};

// The name of an exchange in an account: the same on both sides.
[[nodiscard]] std::string name_of_exchange(const std::string& group, std::size_t index,
                                           const collective::Exchange& exchange);
// What of it is compared: what was asked for and given.
[[nodiscard]] std::uint64_t digest_of(const collective::Exchange& exchange);

// Writes a recording. One thread at a time. After an error nothing more is written.
class RecordingWriter {
 public:
  // `limit`: in bytes.
  static Result<RecordingWriter> make(const std::string& path, std::uint64_t limit);

  void note(std::string_view name, std::uint64_t digest);
  void exchange(std::string_view group, const collective::Exchange& exchange);
  void account(const understudy::Account& account);
  [[nodiscard]] bool is_whole() const { return is_whole_; }  // It had room for all.

 private:
  RecordingWriter(os::Fd file, std::uint64_t limit) : file_(std::move(file)), left_(limit) {}
  void write(std::uint32_t kind, std::string_view name, std::uint64_t digest,
             std::span<const std::byte> got);
  os::Fd file_;
  std::uint64_t left_;
  bool is_whole_ = true;
};

struct Recording {
  understudy::Account account;
  std::map<std::string, std::vector<std::span<const std::byte>>> got;  // By group; in `memory`.
  os::Mapping memory;
};
// Errors: it is damaged.
[[nodiscard]] Result<Recording> read_recording(const std::string& path);

}  // namespace holdfast::runtime
