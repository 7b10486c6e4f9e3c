// Recorder: a rank records one of its steps for whoever rehearses it (recording.h). While nobody
// does, a step costs it the look at one word.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"
#include "collective/tape.h"
#include "runtime/worker/recording.h"

namespace holdfast::runtime {

class Recorder final : public collective::Tape {
 public:
  // Writes the state before the step into a file.
  using ShowState = std::function<Status(const std::string& path)>;

  // `limit`: of a recording, in bytes.
  static Result<std::shared_ptr<Recorder>> make(const Identity& identity, std::uint64_t limit);

  // The training thread. Whether the step that begins now, after `version`, is recorded.
  [[nodiscard]] bool begin(Version version, const ShowState& show_state);
  void note(std::string_view name, std::uint64_t digest);
  // The step has ended: it was made, or is void.
  void end(bool is_made);

  // Of what a face exchanges for itself, only the sizes are compared.
  void compare(bool on) { compares_ = on; }

  void record(const std::string& group, const collective::Exchange& exchange) override;
  collective::Outcome play(const std::string& group, const collective::Exchange& exchange) override;

 private:
  Recorder(SamplePage page, std::string folder, std::uint64_t limit)
      : page_(std::move(page)), folder_(std::move(folder)), limit_(limit) {}

  [[nodiscard]] bool begin_writing(const ShowState& show_state);

  SamplePage page_;
  const std::string folder_;
  const std::uint64_t limit_;
  Version version_ = kNoVersion;
  std::atomic<bool> compares_ = true;
  std::mutex mutex_;  // Of the writer: groups have threads of their own.
  std::optional<RecordingWriter> writer_;
};

}  // namespace holdfast::runtime
