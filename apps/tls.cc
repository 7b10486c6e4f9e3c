#include "apps/tls.h"

#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/text.h"
#include "config/settings.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/host.h"
#include "tls/authority.h"
#include "tls/context.h"
#include "tls/handshake.h"

namespace holdfast::apps {
namespace {

constexpr int kMostDays = 3650;
constexpr std::size_t kLongestHost = 253;

struct NewOptions {
  std::string folder;
  std::vector<std::string> hosts;
  int days = 365;
  bool ask = false;
};

int refuse(const Error& error) {
  std::fprintf(stderr, "holdfast: %s\n", error.what.c_str());
  return 1;
}

bool is_host(const std::string& host) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || c == ':';
  };
  return !host.empty() && host.size() <= kLongestHost &&
         std::all_of(host.begin(), host.end(), plain);
}

// Writes a role's certificate and key; also its password, unless the user has typed that in.
Status write_identity(const std::string& folder, tls::Role role, const tls::Authority& authority,
                      const NewOptions& options, const tls::Validity& validity) {
  const bool server = role == tls::Role::kServer;
  const std::string name(tls::name_of(role));
  auto password = options.ask ? tls::ask_password(cat("the ", name, "'s new certificate"), true)
                              : tls::random_password();
  if (!password) return password.error();
  const auto issued = authority.issue({.name = cat("holdfast ", name),
                                       .roles = server ? "serverAuth" : "clientAuth",
                                       .hosts = server ? options.hosts : std::vector<std::string>(),
                                       .validity = validity},
                                      *password);
  if (!issued) return issued.error();
  if (!options.ask) {
    const auto wrote =
        os::write_file_atomically(cat(folder, '/', name, ".password"), cat(password->text(), '\n'));
    if (!wrote) return wrote;
  }
  return os::write_file_atomically(cat(folder, '/', name, ".p12"), issued->pkcs12);
}

std::string config_of(const NewOptions& options) {
  const nlohmann::ordered_json json = {
      {"server_cert_path", "server.p12"},
      {"crl_path", "crl.pem"},
      {"client_cert_path", "client.p12"},
      {"ca_cert_path", "ca.crt"},
      {"cipher_list",
       "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES128-GCM-SHA256"},
      {"cert_expire_warning_time_in_day", std::clamp(options.days / 4, 7, 90)}};
  return json.dump(2) + "\n";
}

// Writes all files of a new authority into an empty folder.
Status fill(const std::string& folder, const NewOptions& options) {
  tls::Validity validity;
  validity.until = std::chrono::hours(24 * options.days);
  // A common name has at most 64 characters.
  const auto authority = tls::Authority::make(
      cat("holdfast trial authority of ", os::host_name().substr(0, 30)), validity);
  if (!authority) return authority.error();
  const std::pair<const char*, Result<std::string>> files[] = {
      {"/ca.crt", authority->certificate()},
      {"/ca.key", authority->key()},
      {"/crl.pem", authority->revocation_list({}, validity)},
      {"/config.json", config_of(options)}};
  for (const auto& [name, bytes] : files) {
    if (!bytes) return bytes.error();
    const auto wrote = os::write_file_atomically(folder + name, *bytes);
    if (!wrote) return wrote;
  }
  for (const auto role : {tls::Role::kServer, tls::Role::kClient}) {
    const auto wrote = write_identity(folder, role, *authority, options, validity);
    if (!wrote) return wrote;
  }
  return {};
}

// Makes all files in a temporary folder, which is then renamed to the wanted one. So there are all
// files or none, and nothing that exists is replaced.
int make_new(const NewOptions& options) {
  auto wanted = std::filesystem::absolute(options.folder).lexically_normal().string();
  while (wanted.size() > 1 && wanted.back() == '/') wanted.pop_back();
  const auto parent = os::make_directories(os::folder_of(wanted));
  if (!parent) return refuse(parent.error());
  std::string draft = wanted + ".XXXXXX";
  if (::mkdtemp(draft.data()) == nullptr) {
    return refuse(os::system_error(cat("cannot make a folder beside ", wanted), errno));
  }
  auto made = fill(draft, options);
  if (made && ::rename(draft.c_str(), wanted.c_str()) != 0) {
    const bool taken = errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR;
    made = taken ? Error{Blame::kUser, cat(wanted,
                                           " is there already, and is left as it is: name "
                                           "a folder that is not there")}
                 : os::system_error(cat("cannot make the folder ", wanted), errno);
  }
  if (!made) {
    std::error_code none;
    std::filesystem::remove_all(draft, none);
    return refuse(made.error());
  }
  std::printf(
      "made %s: ca.crt, crl.pem, server.p12, client.p12 and config.json, for %d days.\n"
      "Every process of a job needs these. Nobody but you needs ca.key, and whoever has it can "
      "make "
      "members of your jobs.\n",
      wanted.c_str(), options.days);
  const auto path = [&](const char* role) {
    return options.ask ? std::string()
                       : cat(" HOLDFAST_TLS_", role, "_PASSWORD_FILE=", wanted, '/',
                             *role == 'S' ? "server" : "client", ".password");
  };
  std::printf("Try: %s%s holdfast tls check %s/config.json\n", options.ask ? "" : "env",
              cat(path("SERVER"), path("CLIENT")).c_str(), wanted.c_str());
  return 0;
}

// What `holdfast tls check` has found.
class Findings {
 public:
  void refuse(const std::string& what) { add(refused_, what); }
  void warn(const std::string& what) { add(warnings_, what); }

  // Prints all findings, and returns the exit code.
  [[nodiscard]] int say() const {
    for (const auto& what : warnings_) std::printf("warning: %s\n", what.c_str());
    std::fflush(stdout);
    for (const auto& what : refused_) std::fprintf(stderr, "holdfast: %s\n", what.c_str());
    return refused_.empty() ? 0 : 1;
  }

 private:
  // Adds each finding once: both roles find the same about files that they share.
  static void add(std::vector<std::string>& to, const std::string& what) {
    if (std::find(to.begin(), to.end(), what) == to.end()) to.push_back(what);
  }

  std::vector<std::string> refused_;
  std::vector<std::string> warnings_;
};

std::shared_ptr<tls::Context> check_role(const tls::Config& config, tls::Role role,
                                         const config::Settings& settings, char** environment,
                                         Findings& findings) {
  const auto password = tls::password_of(role, settings, environment);
  if (!password) {
    findings.refuse(password.error().what);
    return nullptr;
  }
  auto context = tls::Context::make(config, role, *password);
  if (!context) {
    findings.refuse(context.error().what);
    return nullptr;
  }
  std::printf("%s: %s\n", std::string(tls::name_of(role)).c_str(), (*context)->about().c_str());
  for (const auto& warning : (*context)->warnings()) findings.warn(warning);
  return *context;
}

// Tries a handshake in memory under one version of TLS.
void check_handshake(int version, const std::string& host, tls::Context& server,
                     tls::Context& client, Findings& findings) {
  const char* name = version == TLS1_2_VERSION ? "TLS 1.2" : "TLS 1.3";
  const auto accepting = server.begin();
  const auto calling = client.begin();
  for (const auto* ssl : {&accepting, &calling}) {
    if (!*ssl) return findings.refuse(ssl->error().what);
  }
  if (!host.empty()) {
    if (const auto named = tls::require_host(calling->get(), host); !named) {
      return findings.refuse(cat("MS_SCHED_HOST: ", named.error().what));
    }
  }
  for (SSL* ssl : {accepting->get(), calling->get()}) {
    const bool spoken =
        SSL_set_max_proto_version(ssl, version) == 1 && SSL_get_min_proto_version(ssl) <= version;
    if (!spoken || SSL_set_min_proto_version(ssl, version) != 1) {
      std::printf("%s: not spoken, cipher_list has nothing for it\n", name);
      return;
    }
  }
  const auto meeting = tls::meet(accepting->get(), calling->get());
  if (meeting.agreed()) {
    std::printf("%s: a handshake in memory succeeds, with %s%s\n", name, meeting.cipher.c_str(),
                host.empty() ? "" : cat(", for the host ", host).c_str());
    return;
  }
  if (!meeting.server_refusal.empty()) {
    findings.refuse(cat(name, ", the server: ", meeting.server_refusal));
  }
  if (!meeting.client_refusal.empty()) {
    findings.refuse(cat(name, ", the client: ", meeting.client_refusal));
  }
}

bool is_set(char** environment, const std::string& variable) {
  for (; *environment != nullptr; ++environment) {
    if (std::string_view(*environment).starts_with(variable + "=")) return true;
  }
  return false;
}

int check(const std::string& path, char** environment) {
  const auto settings = config::from_environment(environment);
  if (!settings) return refuse(settings.error());
  const auto config = tls::read_config(path);
  if (!config) return refuse(config.error());
  Findings findings;
  for (const auto& warning : config->warnings) findings.warn(warning);
  if (config->crl_path.empty()) {
    findings.warn("crl_path is empty: nobody is found to be revoked");
  }
  const auto server = check_role(*config, tls::Role::kServer, *settings, environment, findings);
  const auto client = check_role(*config, tls::Role::kClient, *settings, environment, findings);
  // Without MS_SCHED_HOST no name is checked: the certificate need not be for the default of that
  // variable.
  const std::string host = is_set(environment, "MS_SCHED_HOST") ? settings->sched_host : "";
  if (server && client) {
    check_handshake(TLS1_2_VERSION, host, *server, *client, findings);
    check_handshake(TLS1_3_VERSION, host, *server, *client, findings);
  }
  if (host.empty()) {
    std::puts("Not checked, since MS_SCHED_HOST is not set: whether the server's names have it.");
  }
  return findings.say();
}

int wrong_command(const std::string& what) {
  std::fprintf(stderr, "holdfast tls: %s\n", what.c_str());
  return 2;
}

}  // namespace

int tls(int argc, const char* const* argv, char** environment) {
  CLI::App app("Certificates for TLS between the processes of a job.", "holdfast tls");
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done; 1 something is refused or not possible (said why); 2 wrong command "
      "line.");
  NewOptions options;
  auto* make = app.add_subcommand(
      "new", "Make a small authority for trying it out: certificates and a config.json");
  make->add_option("dir", options.folder, "A folder that is not there yet, or is empty")
      ->required();
  make->add_option("--hosts", options.hosts,
                   "Names and addresses of the server, with ',' between (default: this host)")
      ->delimiter(',')
      ->allow_extra_args(false);
  make->add_option("--days", options.days, "How long the certificates are valid")
      ->check(CLI::Range(1, kMostDays))
      ->capture_default_str();
  make->add_flag("--ask", options.ask,
                 "Ask for the passwords, instead of drawing them into DIR/*.password");
  std::string config;
  auto* check_command =
      app.add_subcommand("check", "Say all that a job would refuse or warn of in a configuration");
  check_command->add_option("config", config, "The reference's config.json")->required();
  check_command->footer(
      "The passwords come from HOLDFAST_TLS_SERVER_PASSWORD_FILE and "
      "HOLDFAST_TLS_CLIENT_PASSWORD_FILE, or the same names\nwithout _FILE; else they are asked "
      "for. Set MS_SCHED_HOST, and the server's names are compared with it.");
  try {
    std::vector<const char*> words{"holdfast tls"};
    words.insert(words.end(), argv, argv + argc);
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    const bool command = !make->parsed() && !check_command->parsed();
    return wrong_command(command ? "say what to do: new DIR or check CONFIG (--help)"
                                 : error.what());
  }
  if (check_command->parsed()) return check(config, environment);
  if (options.hosts.empty()) {
    options.hosts = {"localhost", "127.0.0.1", "::1"};
    if (is_host(os::host_name())) options.hosts.push_back(os::host_name());
  }
  const auto wrong = std::find_if_not(options.hosts.begin(), options.hosts.end(), is_host);
  if (wrong != options.hosts.end()) {
    return wrong_command(cat("'", *wrong, "' is no name or address of a host"));
  }
  return make_new(options);
}

}  // namespace holdfast::apps
