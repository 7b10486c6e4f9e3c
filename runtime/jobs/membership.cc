#include "runtime/jobs/membership.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "base/text.h"
#include "os/files.h"
#include "os/folder.h"
#include "os/host.h"
#include "os/random_bits.h"
#include "runtime/jobs/tls_choice.h"
#include "tls/file.h"

namespace holdfast::runtime {
namespace {

constexpr std::size_t kTokenBytes = 32;  // Of a token that is drawn.
constexpr std::size_t kShortest = 16;    // Letters of one that is given.
constexpr std::size_t kLongest = 4096;
constexpr const char* kTokenFile = "token";

// `what` and `path` are for errors.
Result<std::string> token_in(const std::string& text, std::string_view what,
                             const std::string& path) {
  std::string token = text.substr(0, text.find_first_of("\r\n"));
  if (token.size() >= kShortest && token.size() <= kLongest) return token;
  return Error{Blame::kUser, cat(what, ", ", path, ", has ", token.size(),
                                 " letters in its first line: it has to have ", kShortest, " to ",
                                 kLongest, ", which nobody can guess (openssl rand -hex 32)")};
}

// Nothing: the scheduler has not made it yet.
Result<std::optional<std::string>> drawn_before(const std::string& directory) {
  const auto folder = os::open_runtime_directory(directory);
  if (!folder) return folder.error();
  if (!*folder) return std::optional<std::string>();
  const os::FileName name{folder->get(), folder->path(), kTokenFile};
  const auto file = os::open_own_file(name, O_RDONLY);
  if (!file) return file.error();
  if (!*file) return std::optional<std::string>();
  const auto text = os::read_rest(*file, name.path);
  if (!text) return text.error();
  auto token = token_in(*text, "the job's token", name.path);
  if (!token) return token.error();
  return std::optional(*std::move(token));
}

std::string drawn_token() {
  std::array<unsigned char, kTokenBytes> bytes;
  os::fill_with_random(bytes.data(), bytes.size());
  std::string text;
  for (const unsigned byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15U];
  }
  return text + "\n";
}

// Makes the token's file if there is none: its predecessor's token stays the job's.
Status make_token(const std::string& directory) {
  const auto before = drawn_before(directory);
  if (!before) return before.error();
  if (*before) return {};
  const auto folder = os::open_runtime_directory(directory);
  if (!folder) return folder.error();
  return folder->write(kTokenFile, drawn_token());
}

// The token that the user has given; or "", where certificates prove all; or that of the folder.
Result<std::string> token_of(const config::Settings& settings, const std::string& directory) {
  if (!settings.token_file.empty()) {
    const char* const what = "HOLDFAST_TOKEN_FILE";
    const auto file = tls::read_file(settings.token_file, what, kLongest, tls::Guard::kSecret);
    if (!file) return file.error();
    return token_in(file->bytes, what, settings.token_file);
  }
  if (!settings.tls_config.empty()) return std::string();
  auto token = drawn_before(directory);
  if (!token) return token.error();
  if (*token) return **std::move(token);
  return Error{Blame::kWorld, cat("no scheduler of job ", settings.job,
                                  " has begun on this host, where ", directory,
                                  " would have its token; for one on another host, set "
                                  "HOLDFAST_TOKEN_FILE for all processes of the job")};
}

Result<io::Membership> made_of(const config::Settings& settings, const std::string& directory,
                               wire::PeerKind kind, tls::Role role) {
  auto token = token_of(settings, directory);
  if (!token) return token.error();
  auto context = tls_context_of(settings, role);
  if (!context) return context.error();
  return io::Membership{settings.job, *std::move(token), kind, *std::move(context)};
}

// Whether the scheduler draws the token.
bool draws_token(const config::Settings& settings) {
  return settings.token_file.empty() && settings.tls_config.empty();
}

}  // namespace

Result<io::Membership> membership_of(const config::Settings& settings, wire::PeerKind kind) {
  const std::string directory = os::runtime_path(settings.job);
  const auto with = with_tls(settings, directory);
  if (!with) return with.error();
  return made_of(*with, directory, kind, tls::Role::kClient);
}

Result<io::Membership> membership_of_scheduler(const config::Settings& given,
                                               const std::string& directory) {
  const config::Settings settings = with_program_tls(given);
  if (const auto left = leave_tls(settings, directory); !left) return left.error();
  if (draws_token(settings)) {
    if (const auto made = make_token(directory); !made) return made.error();
  }
  return made_of(settings, directory, wire::PeerKind::kObserver, tls::Role::kServer);
}

Result<io::Membership> membership_of_observer(const config::Settings& settings,
                                              const std::string& directory) {
  const auto with = with_tls(settings, directory);
  if (!with) return with.error();
  return made_of(*with, directory, wire::PeerKind::kObserver, tls::Role::kClient);
}

Status check_tls(const config::Settings& settings, bool is_server) {
  const auto context = tls_context_of(with_program_tls(settings),
                                      is_server ? tls::Role::kServer : tls::Role::kClient);
  return context ? Status{} : Status{context.error()};
}

}  // namespace holdfast::runtime
