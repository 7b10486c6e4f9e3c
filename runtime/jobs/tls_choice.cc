#include "runtime/jobs/tls_choice.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/text.h"
#include "os/folder.h"
#include "os/host.h"
#include "tls/config.h"

namespace holdfast::runtime {
namespace {

using Contexts = std::map<std::pair<std::string, tls::Role>, std::shared_ptr<tls::Context>>;

constexpr const char* kTlsFile = "tls.json";
constexpr const char* kPasswordFile = "client.password";

// What the program chose by choose_tls(). It is not in Settings, since those are copied and traced.
struct Choice {
  std::string config;
  std::optional<tls::Password> client;
  std::optional<tls::Password> server;
  bool too_late = false;  // A connection in the clear was made first.
  std::string refused;    // Why choose_tls() failed, if the program went on all the same.
};

// Never destroyed: the control thread may connect while the program is at its exit().
std::mutex& mutex() {
  static auto* const the_mutex = new std::mutex;
  return *the_mutex;
}

// choice(), contexts() and taken() require that mutex() is held.
Choice& choice() {
  static auto* const the_choice = new Choice;
  return *the_choice;
}
Contexts& contexts() {
  static auto* const all = new Contexts;
  return *all;
}

std::string absolute(const std::string& path) {
  std::error_code error;
  const auto whole = std::filesystem::absolute(path, error).lexically_normal();
  return error ? path : whole.string();
}

bool is_empty(const tls::Password& password) {
  return *password.text() == '\0';
}

// Passwords from variables, which are wiped as they are read. Kept after a failed attempt, so that
// a later one in this process finds them here.
std::map<tls::Role, tls::Password>& taken() {
  static auto* const all = new std::map<tls::Role, tls::Password>;
  return *all;
}

Result<tls::Password> password_of(const config::Settings& settings, tls::Role role) {
  const bool server = role == tls::Role::kServer;
  const auto& given = server ? choice().server : choice().client;
  if (given && settings.tls_config == choice().config) return tls::Password(given->text());
  const bool in_variable =
      server ? settings.tls_server_password.given : settings.tls_client_password.given;
  const bool in_file =
      !(server ? settings.tls_server_password_file : settings.tls_client_password_file).empty();
  const auto before = taken().find(role);
  const bool is_taken = before != taken().end() && !in_file;
  if (is_taken && !in_variable) return tls::Password(before->second.text());
  auto password = tls::password_of(role, settings, environ);
  if (!password || !in_variable) return password;
  if (is_taken && is_empty(*password)) return tls::Password(before->second.text());
  taken().erase(role);
  taken().emplace(role, password->text());
  return password;
}

Result<std::shared_ptr<tls::Context>> make_context(const config::Settings& settings,
                                                   tls::Role role) {
  auto& context = contexts()[{settings.tls_config, role}];
  if (context) return context;
  auto config = tls::read_config(settings.tls_config);
  if (!config) return config.error();
  const auto password = password_of(settings, role);
  if (!password) return password.error();
  auto made = tls::Context::make(*config, role, *password);
  if (!made) return made.error();
  context = *std::move(made);
  taken().erase(role);
  context->say_by([](const auto& text) { std::fprintf(stderr, "holdfast: %s\n", text.c_str()); });
  for (const auto& warnings : {config->warnings, context->warnings()}) {
    for (const auto& text : warnings) std::fprintf(stderr, "holdfast: %s\n", text.c_str());
  }
  return context;
}

// Checks the arguments of choose_tls().
Status check(const config::Settings& settings, const std::string& config_path,
             const tls::Password& client, const tls::Password& server) {
  if (config_path.empty()) {
    return Error{Blame::kUser, "config_file_path is empty: name the config.json of this job's TLS"};
  }
  if (choice().too_late) {
    return Error{Blame::kUser,
                 "TLS is set too late: this process speaks with its scheduler in the clear. Set it "
                 "before init(), in the scheduler's process as well (for MindSpore: in the script "
                 "itself), or set HOLDFAST_TLS_CONFIG"};
  }
  for (const auto& former : {settings.tls_config, choice().config}) {
    if (former.empty() || absolute(former) == absolute(config_path)) continue;
    return Error{Blame::kUser,
                 cat("config_file_path is ", config_path, ", but ", former,
                     former == choice().config ? " was set before" : " is in HOLDFAST_TLS_CONFIG",
                     ": a job has one TLS configuration")};
  }
  for (const auto* password : {&client, &server}) {
    if (std::string_view(password->text()).find_first_of("\r\n") == std::string_view::npos)
      continue;
    return Error{Blame::kUser, cat(password == &client ? "client" : "server",
                                   "_password has more than one line")};
  }
  return {};
}

// The path of a file with the client's password, for processes that do not run the program; writes
// it if the user has none. "": this process knows no such password.
Result<std::string> client_password_file(const config::Settings& settings,
                                         const os::Folder& folder) {
  if (!settings.tls_client_password_file.empty()) {
    return absolute(settings.tls_client_password_file);
  }
  auto& known = choice().client;
  if (!known) {
    if (!settings.tls_client_password.given) return std::string();
    auto taken = tls::password_of(tls::Role::kClient, settings, environ);
    if (!taken) return taken.error();
    known.emplace(*std::move(taken));
  }
  const auto written = folder.write(kPasswordFile, known->text());
  known.reset();
  if (!written) return written.error();
  return cat(folder.path(), '/', kPasswordFile);
}

// What leave_tls() has left; nullopt: nothing.
Result<std::optional<nlohmann::json>> left_in(const std::string& directory) {
  const auto folder = os::open_runtime_directory(directory);
  if (!folder) return folder.error();
  const auto text = folder->read_if_there(kTlsFile);
  if (!text) return text.error();
  if (!*text) return std::optional<nlohmann::json>();
  auto json = nlohmann::json::parse(**text, nullptr, false);
  const auto is_text = [&](const char* key) { return json.contains(key) && json[key].is_string(); };
  if (json.is_object() && is_text("config") && is_text("client_password_file")) {
    return std::optional(std::move(json));
  }
  return Error{Blame::kWorld,
               cat(directory, '/', kTlsFile, " is damaged; the job's scheduler writes it anew")};
}

Status choose(const config::Settings& settings, const std::string& config_path,
              const tls::Password& client, const tls::Password& server) {
  if (const auto good = check(settings, config_path, client, server); !good) return good.error();
  Choice& chosen = choice();
  const std::string former = chosen.config;
  auto with = settings;
  with.tls_config = absolute(config_path);
  chosen.config = with.tls_config;
  if (!is_empty(client)) chosen.client.emplace(client.text());
  if (!is_empty(server)) chosen.server.emplace(server.text());
  const bool serves = settings.role == config::Role::kScheduler;
  const auto context = make_context(with, serves ? tls::Role::kServer : tls::Role::kClient);
  chosen.server.reset();
  if (!context || !serves) chosen.client.reset();  // A scheduler keeps it for leave_tls().
  if (context) return {};
  chosen.config = former;
  return context.error();
}

}  // namespace

Status choose_tls(const config::Settings& settings, const std::string& config_path,
                  const tls::Password& client, const tls::Password& server) {
  const std::lock_guard lock(mutex());
  const auto chosen = choose(settings, config_path, client, server);
  // If choose_tls() came too late, its refusal is not kept: the job runs in the clear, as it was
  // set up.
  if (!choice().too_late) choice().refused = chosen ? "" : chosen.error().what;
  return chosen;
}

bool may_stay_in_the_clear() {
  const std::lock_guard lock(mutex());
  choice().too_late = choice().config.empty() && choice().refused.empty();
  return choice().too_late;
}

Result<config::Settings> with_program_tls(config::Settings settings) {
  const std::lock_guard lock(mutex());
  if (!choice().config.empty()) settings.tls_config = choice().config;
  if (!settings.tls_config.empty() || choice().refused.empty()) return settings;
  return Error{Blame::kUser,
               cat("this program wants TLS, and went on though that had failed; it is not put in "
                   "the clear instead: ",
                   choice().refused)};
}

Result<config::Settings> with_tls(const config::Settings& settings, const std::string& directory) {
  auto with = with_program_tls(settings);
  if (!with || !with->tls_config.empty()) return with;
  const auto left = left_in(directory);
  if (!left) return left.error();
  if (!*left) return with;
  with->tls_config = (*left)->at("config").get<std::string>();
  if (!with->tls_client_password.given && with->tls_client_password_file.empty()) {
    with->tls_client_password_file = (*left)->at("client_password_file").get<std::string>();
  }
  return with;
}

Status leave_tls(const config::Settings& settings, const std::string& directory) {
  const std::lock_guard lock(mutex());
  const auto folder = os::open_runtime_directory(directory);
  if (!folder) return folder.error();
  if (settings.tls_config.empty()) {
    if (const auto removed = folder->remove(kPasswordFile); !removed) return removed;
    return folder->remove(kTlsFile);
  }
  const auto password = client_password_file(settings, *folder);
  if (!password) return password.error();
  const nlohmann::json json = {{"config", absolute(settings.tls_config)},
                               {"client_password_file", *password}};
  return folder->write(kTlsFile,
                       json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

Result<std::shared_ptr<tls::Context>> tls_context_of(const config::Settings& settings,
                                                     tls::Role role) {
  if (settings.tls_config.empty()) return std::shared_ptr<tls::Context>();
  const std::lock_guard lock(mutex());
  return make_context(settings, role);
}

}  // namespace holdfast::runtime
