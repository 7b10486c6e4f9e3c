#include "runtime/jobs/membership.h"

#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "base/text.h"
#include "os/folder.h"
#include "os/host.h"
#include "os/random_bits.h"
#include "runtime/jobs/tls_choice.h"
#include "tls/file.h"

namespace holdfast::runtime {
namespace {

constexpr std::size_t kTokenBytes = 32;  // The length of a token that the scheduler draws.
constexpr std::size_t kShortest = 16;    // Letters in a token that the user gives.
constexpr std::size_t kLongest = 4096;
constexpr const char* kTokenFile = "token";
constexpr const char* kTicketsFile = "tickets";

// The token in the first line of `text`. `what` and `path` are for errors.
Result<std::string> token_in(const std::string& text, std::string_view what,
                             const std::string& path) {
  std::string token = text.substr(0, text.find_first_of("\r\n"));
  if (token.size() >= kShortest && token.size() <= kLongest) return token;
  return Error{Blame::kUser, cat(what, ", ", path, ", has ", token.size(),
                                 " letters in its first line: it has to have ", kShortest, " to ",
                                 kLongest, ", which nobody can guess (openssl rand -hex 32)")};
}

// The secret in `file`; nullopt: the scheduler has not made the file yet.
Result<std::optional<std::string>> drawn_before(const os::Folder& folder, const char* file) {
  const auto text = folder.read_if_there(file);
  if (!text) return text.error();
  if (!*text) return std::optional<std::string>();
  auto token = token_in(**text, "what the scheduler has drawn", cat(folder.path(), '/', file));
  if (!token) return token.error();
  return std::optional(*std::move(token));
}

std::string in_hex(std::string_view bytes) {
  std::string text;
  for (const char letter : bytes) {
    const auto byte = static_cast<unsigned char>(letter);
    text += "0123456789abcdef"[byte >> 4U];
    text += "0123456789abcdef"[byte & 15U];
  }
  return text;
}

std::string drawn_secret() {
  std::array<unsigned char, kTokenBytes> bytes;
  os::fill_with_random(bytes.data(), bytes.size());
  return in_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// The secret in `file`, which is drawn if there is none. A scheduler that takes over keeps the
// secret of its predecessor.
Result<std::string> draw_once(const std::string& directory, const char* file) {
  const auto folder = os::open_runtime_directory(directory);
  if (!folder) return folder.error();
  auto before = drawn_before(*folder, file);
  if (!before) return before.error();
  if (*before) return **std::move(before);
  const auto drawn = drawn_secret();
  const auto written = folder->write(file, drawn + "\n");
  if (!written) return written.error();
  return drawn;
}

Result<std::string> given_token(const std::string& path) {
  const char* const what = "HOLDFAST_TOKEN_FILE";
  const auto file = tls::read_file(path, what, kLongest, tls::Guard::kSecret);
  if (!file) return file.error();
  return token_in(file->bytes, what, path);
}

// The token that the user has given, or that of the folder.
Result<std::string> token_of(const config::Settings& settings, const std::string& directory) {
  if (!settings.token_file.empty()) return given_token(settings.token_file);
  const auto folder = os::open_runtime_directory(directory);
  if (!folder) return folder.error();
  auto token = drawn_before(*folder, kTokenFile);
  if (!token) return token.error();
  if (*token) return **std::move(token);
  if (os::is_address_elsewhere(settings.sched_host)) {
    return Error{Blame::kUser,
                 cat("the scheduler is on another host (MS_SCHED_HOST is ", settings.sched_host,
                     "), and this process has no token to prove itself by: set HOLDFAST_TOKEN_FILE "
                     "for all processes of the job, to a file with the same text on each host")};
  }
  return Error{Blame::kWorld,
               cat("no job ", settings.job, " is on this host (", directory, '/', kTokenFile,
                   " is not there): it has ended, or it has not begun. Start it; if "
                   "its scheduler is on another host, set HOLDFAST_TOKEN_FILE for "
                   "all processes of the job")};
}

Result<io::Membership> made_of(const config::Settings& settings, const std::string& directory,
                               wire::PeerKind kind, tls::Role role) {
  auto token = token_of(settings, directory);
  if (!token) return token.error();
  auto context = tls_context_of(settings, role);
  io::Membership made{settings.job, *std::move(token), kind};
  if (context) {
    made.tls = *std::move(context);
  } else {
    made.tls_problem = context.error().what;
  }
  return made;
}

// The membership of a process that connects.
Result<io::Membership> of_client(const config::Settings& settings, const std::string& directory,
                                 wire::PeerKind kind) {
  const auto with = with_tls(settings, directory);
  if (with) return made_of(*with, directory, kind, tls::Role::kClient);
  auto token = token_of(settings, directory);
  if (!token) return with.error();
  return io::Membership{settings.job, *std::move(token), kind, nullptr, with.error().what};
}

}  // namespace

Result<io::Membership> membership_of(const config::Settings& settings, wire::PeerKind kind) {
  return of_client(settings, os::runtime_path(settings.job), kind);
}

Result<io::Membership> membership_of_scheduler(const config::Settings& given,
                                               const std::string& directory) {
  const auto settings = with_program_tls(given);
  if (!settings) return settings.error();
  if (const auto left = leave_tls(*settings, directory); !left) return left.error();
  if (settings->token_file.empty()) {
    if (const auto made = draw_once(directory, kTokenFile); !made) return made.error();
  }
  auto made = made_of(*settings, directory, wire::PeerKind::kObserver, tls::Role::kServer);
  if (!made || !made->tls) return made;
  // The key of TLS tickets is not derived from the token: a process with the token but no
  // certificate could forge tickets.
  const auto secret = draw_once(directory, kTicketsFile);
  if (!secret) return secret.error();
  if (const auto kept = made->tls->keep_sessions_by(*secret); !kept) return kept.error();
  return made;
}

io::Membership membership_of_nobody(const config::Settings& settings, wire::PeerKind kind) {
  return {settings.job, drawn_secret(), kind, nullptr};
}

Result<io::Membership> membership_of_observer(const config::Settings& settings,
                                              const std::string& directory) {
  return of_client(settings, directory, wire::PeerKind::kObserver);
}

Result<std::string> page_token_of(const config::Settings& settings, const std::string& directory) {
  const auto token = token_of(settings, directory);
  if (!token) return token.error();
  return in_hex(link::key_for("holdfast status page", *token).substr(0, 16));
}

Result<std::string> token_mark(const config::Settings& settings) {
  if (settings.token_file.empty()) return std::string();
  const auto token = given_token(settings.token_file);
  if (!token) return token.error();
  return in_hex(link::key_for("holdfast name of a job", *token).substr(0, 8));
}

Status check_token_file(const config::Settings& settings) {
  if (settings.token_file.empty()) return {};
  const auto token = given_token(settings.token_file);
  return token ? Status{} : Status{token.error()};
}

Status check_tls(const config::Settings& settings, bool is_server) {
  const auto with = with_program_tls(settings);
  if (!with) return with.error();
  const auto context = tls_context_of(*with, is_server ? tls::Role::kServer : tls::Role::kClient);
  return context ? Status{} : Status{context.error()};
}

}  // namespace holdfast::runtime
