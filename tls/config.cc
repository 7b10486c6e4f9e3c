#include "tls/config.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/text.h"
#include "tls/file.h"

namespace holdfast::tls {
namespace {

constexpr std::size_t kLargestConfig = 1 << 20;
constexpr std::size_t kLongestText = 8192;  // Of one value.
constexpr std::size_t kLongestKey = 100;    // How much of an unknown key is shown.
constexpr int kFewestDays = 7;
constexpr int kMostDays = 180;
constexpr std::string_view kDays = "cert_expire_warning_time_in_day";

struct TextKey {
  std::string_view name;
  std::string Config::*field;
  bool required;
  bool is_path;
};
constexpr TextKey kTextKeys[] = {
    {"server_cert_path", &Config::server_cert_path, true, true},
    {"client_cert_path", &Config::client_cert_path, true, true},
    {"ca_cert_path", &Config::ca_cert_path, true, true},
    {"crl_path", &Config::crl_path, false, true},
    {"cipher_list", &Config::cipher_list, false, false},
};

Error wrong(const std::string& path, const std::string& why) {
  return {Blame::kUser, cat("the TLS configuration ", path, " ", why)};
}

// The JSON object in `bytes`.
Result<nlohmann::json> parse(const std::string& path, const std::string& bytes) {
  try {
    auto json = nlohmann::json::parse(bytes);
    if (!json.is_object())
      return wrong(path, "is no JSON object: it must be { \"key\": value, ... }");
    return json;
  } catch (const nlohmann::json::parse_error& error) {
    const auto end =
        bytes.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, bytes.size()));
    return wrong(
        path, cat("is no JSON: the error is in line ", 1 + std::count(bytes.begin(), end, '\n')));
  }
}

// Warns of an unknown key. If the key is nearly one of ours, it is an error, because nobody would
// notice the mistake: a misspelt crl_path would switch the list off.
Status look_at_unknown(const std::string& path, const std::string& key, Config& config) {
  std::string_view nearest = kDays;
  const std::string_view name = std::string_view(key).substr(0, kLongestKey);
  for (const auto& known : kTextKeys) {
    if (edit_distance(name, known.name) < edit_distance(name, nearest)) nearest = known.name;
  }
  if (edit_distance(name, nearest) <= 2) {
    return wrong(path, cat("has the key '", name, "': is '", nearest, "' meant?"));
  }
  config.warnings.push_back(
      cat("the TLS configuration ", path, " has the key '", name, "', which means nothing here"));
  return {};
}

Status take_text(const std::string& path, const nlohmann::json& json, const TextKey& key,
                 Config& config) {
  const auto found = json.find(key.name);
  if (found == json.end()) {
    if (!key.required) return {};
    return wrong(path, cat("has no '", key.name, "', which it must name"));
  }
  if (!found->is_string())
    return wrong(path, cat("has '", key.name, "' as no text: put it in quotes"));
  auto value = found->get<std::string>();
  if (value.empty() && key.required) return wrong(path, cat("has '", key.name, "' empty"));
  if (value.size() > kLongestText || value.find('\0') != std::string::npos) {
    return wrong(path,
                 cat("has '", key.name, "' longer than ", kLongestText, " bytes, or with a zero"));
  }
  if (key.is_path && !value.empty()) value = std::filesystem::path(path).parent_path() / value;
  config.*key.field = std::move(value);
  return {};
}

}  // namespace

Result<Config> read_config(const std::string& path) {
  const auto file = read_file(path, "the TLS configuration", kLargestConfig, Guard::kShared);
  if (!file) return file.error();
  const auto json = parse(path, file->bytes);
  if (!json) return json.error();
  Config config;
  for (const auto& entry : json->items()) {
    const std::string& key = entry.key();
    const bool known = key == kDays || std::any_of(std::begin(kTextKeys), std::end(kTextKeys),
                                                   [&](const auto& k) { return k.name == key; });
    if (known) continue;
    if (const auto looked = look_at_unknown(path, key, config); !looked) return looked.error();
  }
  for (const auto& key : kTextKeys) {
    if (const auto taken = take_text(path, *json, key, config); !taken) return taken.error();
  }
  if (const auto days = json->find(kDays); days != json->end()) {
    const bool in_range = days->is_number_integer() && *days >= kFewestDays && *days <= kMostDays;
    if (!in_range) {
      return wrong(path, cat("has '", kDays, "' as something else than a whole number from ",
                             kFewestDays, " to ", kMostDays));
    }
    config.cert_expire_warning_time_in_day = days->get<int>();
  }
  return config;
}

}  // namespace holdfast::tls
