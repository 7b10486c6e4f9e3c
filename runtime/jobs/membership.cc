#include "runtime/jobs/membership.h"

#include <unistd.h>

#include <array>
#include <memory>
#include <utility>

#include "base/text.h"
#include "os/files.h"
#include "os/host.h"
#include "os/random_bits.h"
#include "runtime/jobs/tls_choice.h"
#include "tls/file.h"

namespace holdfast::runtime {
namespace {

constexpr std::size_t kTokenBytes = 32;  // Of a token that is drawn.
constexpr std::size_t kShortest = 16;    // Letters of one that is given.
constexpr std::size_t kLongest = 4096;
constexpr const char* kTokenFile = "/token";

std::string first_line(const std::string& text) {
  const std::size_t end = text.find_first_of("\r\n");
  return text.substr(0, end);
}

Result<std::string> read_token(const std::string& path, std::string_view what) {
  const auto file = tls::read_file(path, what, kLongest, tls::Guard::kSecret);
  if (!file) return file.error();
  std::string token = first_line(file->bytes);
  if (token.size() >= kShortest) return token;
  return Error{Blame::kUser, cat(what, ", ", path, ", has ", token.size(),
                                 " letters in its first line: it has to have ", kShortest,
                                 " at least, which nobody can guess (openssl rand -hex 32)")};
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
  const std::string path = directory + kTokenFile;
  return ::access(path.c_str(), F_OK) == 0 ? Status{}
                                           : os::write_file_atomically(path, drawn_token());
}

// The token that the user has given; or "", where certificates prove all; or that of the folder.
Result<std::string> token_of(const config::Settings& settings, const std::string& directory) {
  if (!settings.token_file.empty()) return read_token(settings.token_file, "HOLDFAST_TOKEN_FILE");
  if (!settings.tls_config.empty()) return std::string();
  return read_token(directory + kTokenFile, "the job's token");
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

Result<io::Membership> membership_of(const config::Settings& given, wire::PeerKind kind) {
  const std::string directory = os::runtime_path(given.job);
  const auto with = with_tls(given, directory);
  if (!with) return with.error();
  const config::Settings& settings = *with;
  if (draws_token(settings) && ::access((directory + kTokenFile).c_str(), F_OK) != 0) {
    return Error{Blame::kWorld, cat("no scheduler of job ", settings.job,
                                    " has begun on this host, where ", directory,
                                    " would have its token; for one on another host, set "
                                    "HOLDFAST_TOKEN_FILE for all processes of the job")};
  }
  return made_of(settings, directory, kind, tls::Role::kClient);
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
