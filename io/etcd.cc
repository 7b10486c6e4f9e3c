#include "io/etcd.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/number.h"
#include "base/text.h"
#include "io/http.h"
#include "io/loop.h"

namespace holdfast::io {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

// How long one member has to answer. Then the next one is asked.
constexpr Duration kOneMember = 1s;
constexpr Duration kBetweenRounds = 50ms;
constexpr std::size_t kMostMembers = 16;
constexpr std::string_view kLetters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      bits = bits << 8U | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : kLetters[bits >> (18 - 6 * k) & 63U];
    }
  }
  return text;
}

// nullopt: that is no base64.
std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  unsigned count = 0;
  for (const char letter : text) {
    const auto value = kLetters.find(letter);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6U | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 255U);
  }
  return bytes;
}

// The gateway writes numbers of 64 bits as text. It leaves out numbers that are 0, and false.
std::optional<std::int64_t> number_in(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (found->is_number_integer()) return found->get<std::int64_t>();
  if (!found->is_string()) return std::nullopt;
  const auto& text = found->get_ref<const std::string&>();
  std::int64_t value = 0;
  return read_number(text, value) ? std::optional(value) : std::nullopt;
}

std::optional<bool> flag_in(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return false;
  return found->is_boolean() ? std::optional(found->get<bool>()) : std::nullopt;
}

std::optional<std::string> bytes_in(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return std::string();
  return found->is_string() ? from_base64(found->get_ref<const std::string&>()) : std::nullopt;
}

std::optional<EtcdEntry> entry_in(const Json& object) {
  if (!object.is_object()) return std::nullopt;
  auto key = bytes_in(object, "key");
  auto value = bytes_in(object, "value");
  const auto created = number_in(object, "create_revision");
  const auto changed = number_in(object, "mod_revision");
  const auto lease = number_in(object, "lease");
  if (!key || !value || !created || !changed || !lease) return std::nullopt;
  return EtcdEntry{*std::move(key), *std::move(value), *created, *changed, *lease};
}

std::optional<EtcdRange> range_in(const Json& object) {
  if (!object.is_object()) return std::nullopt;
  const auto more = flag_in(object, "more");
  const auto entries = object.find("kvs");
  if (!more) return std::nullopt;
  EtcdRange range{.entries = {}, .more = *more};
  if (entries == object.end()) return range;
  if (!entries->is_array()) return std::nullopt;
  for (const auto& each : *entries) {
    auto entry = entry_in(each);
    if (!entry) return std::nullopt;
    range.entries.push_back(*std::move(entry));
  }
  return range;
}

// `conditional`: the transaction has conditions. Without any, it must have been done.
std::optional<EtcdAnswer> answer_in(const Json& object, std::size_t ranges, bool conditional) {
  EtcdAnswer answer;
  const auto header = object.find("header");
  const auto done = flag_in(object, "succeeded");
  if (header == object.end() || !header->is_object() || !done) return std::nullopt;
  const auto revision = number_in(*header, "revision");
  if (!revision) return std::nullopt;
  answer.done = *done;
  answer.revision = *revision;
  if (!answer.done) return conditional ? std::optional(std::move(answer)) : std::nullopt;
  const auto responses = object.find("responses");
  if (responses != object.end() && !responses->is_array()) return std::nullopt;
  for (std::size_t i = 0; responses != object.end() && i < responses->size(); ++i) {
    const auto& each = (*responses)[i];
    if (!each.is_object()) return std::nullopt;
    const auto found = each.find("response_range");
    if (found == each.end()) continue;
    auto range = range_in(*found);
    if (!range) return std::nullopt;
    answer.ranges.push_back(*std::move(range));
  }
  return answer.ranges.size() == ranges ? std::optional(std::move(answer)) : std::nullopt;
}

Json to_json(const EtcdOperation& operation) {
  Json json{{"key", to_base64(operation.key)}};
  if (!operation.end.empty()) json["range_end"] = to_base64(operation.end);
  switch (operation.kind) {
    case EtcdOperation::Kind::kPut:
      json["value"] = to_base64(operation.value);
      if (operation.lease != 0) json["lease"] = cat(operation.lease);
      return {{"request_put", std::move(json)}};
    case EtcdOperation::Kind::kDelete:
      return {{"request_delete_range", std::move(json)}};
    case EtcdOperation::Kind::kRange:
      if (operation.limit != 0) json["limit"] = cat(operation.limit);
      if (operation.revision != 0) json["revision"] = cat(operation.revision);
      return {{"request_range", std::move(json)}};
  }
  HF_ASSERT(false);
}

Json to_json(const EtcdTransaction& transaction) {
  Json json{{"compare", Json::array()}, {"success", Json::array()}};
  for (const auto& each : transaction.conditions) {
    Json compare{{"result", "EQUAL"}, {"key", to_base64(each.key)}};
    compare["target"] = each.changed ? "MOD" : "CREATE";
    compare[each.changed ? "mod_revision" : "create_revision"] =
        cat(each.changed.value_or(each.created));
    json["compare"].push_back(std::move(compare));
  }
  for (const auto& each : transaction.operations) json["success"].push_back(to_json(each));
  return json;
}

struct Member {
  std::string host;
  std::uint16_t port = 2379;
  bool is_tls = false;
};

// "https://[::1]:2379"
std::optional<Member> member_of(std::string_view url) {
  Member member{.host = {}, .is_tls = url.starts_with("https://")};
  if (!member.is_tls && !url.starts_with("http://")) return std::nullopt;
  url.remove_prefix(member.is_tls ? 8 : 7);
  if (url.ends_with('/')) url.remove_suffix(1);
  const auto bracket = url.starts_with('[') ? url.find(']') : std::string_view::npos;
  const auto colon = url.find(':', bracket == std::string_view::npos ? 0 : bracket);
  member.host = url.substr(0, colon);
  if (bracket != std::string_view::npos) {
    if (bracket + 1 != std::min(colon, url.size())) return std::nullopt;
    member.host = url.substr(1, bracket - 1);
  }
  if (colon != std::string_view::npos) {
    if (!read_number(url.substr(colon + 1), member.port) || member.port == 0) return std::nullopt;
  }
  const bool sound =
      !member.host.empty() && member.host.find_first_of("/@?#, ") == std::string::npos;
  return sound ? std::optional(std::move(member)) : std::nullopt;
}

Result<std::vector<Member>> members_of(std::string_view text) {
  std::vector<Member> members;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    const auto url = text.substr(begin, end - begin);
    begin = end + 1;
    auto member = member_of(url);
    if (!member || (!members.empty() && member->is_tls != members[0].is_tls) ||
        members.size() == kMostMembers) {
      // The member is not shown: there may be a password in it.
      return Error{Blame::kUser, cat("HOLDFAST_ETCD: member ", members.size() + 1,
                                     " can not be understood; allowed are addresses of etcd's "
                                     "members, without a user, with "
                                     "',' between, ",
                                     kMostMembers,
                                     " at most, all with http:// or all with "
                                     "https://: http://h1:2379,http://h2:2379")};
    }
    members.push_back(*std::move(member));
  }
  return members;
}

// Whether the request would fail at another member, or a moment later, too. `code` is gRPC's.
bool is_final(std::int64_t code) {
  constexpr std::int64_t kInvalid = 3;
  constexpr std::int64_t kNoRights = 7;
  constexpr std::int64_t kOutOfRange = 11;
  constexpr std::int64_t kUnknown = 16;
  return code == kInvalid || code == kNoRights || code == kOutOfRange || code == kUnknown;
}
constexpr std::int64_t kNotFound = 5;

}  // namespace

class Etcd::Impl {
 public:
  Impl(const std::vector<Member>& members, const HttpTls& tls) {
    for (const auto& each : members) {
      members_.push_back(
          {HttpClient(each.host, each.port, tls), host_and_port(each.host, each.port)});
    }
  }

  // Returns the answer, an object. It is empty if etcd does not know what was asked for, like a
  // lease that has ended.
  Result<Json> ask(std::string_view path, const Json& request, Instant until) {
    const std::string body = request.dump();
    Error last{Blame::kWorld, "there was no time left"};
    while (true) {
      for (std::size_t i = 0; i < members_.size(); ++i) {
        const Instant now = Loop::now();
        if (now >= until) return nobody(last);
        auto& member = members_[current_];
        // A member that hangs must not take the time of the others.
        const Duration share = (until - now) / static_cast<std::int64_t>(members_.size() - i);
        auto answer = member.client.post(path, body, now + std::min(kOneMember, share));
        if (answer) {
          auto checked = check(member.name, *answer);
          if (checked || checked.error().blame == Blame::kUser) return checked;
          last = checked.error();
        } else {
          last = answer.error();
        }
        current_ = (current_ + 1) % members_.size();
      }
      if (Loop::now() + kBetweenRounds >= until) return nobody(last);
      std::this_thread::sleep_for(kBetweenRounds);
    }
  }

 private:
  struct One {
    HttpClient client;
    std::string name;
  };

  // The parsed answer. Blame::kUser: other members would refuse the request, too.
  static Result<Json> check(const std::string& name, const HttpClient::Answer& answer) {
    Json json = Json::parse(answer.body, nullptr, false);
    if (!json.is_object()) {
      return Error{Blame::kPeer, cat(name, " answers what is none of etcd's JSON (HTTP status ",
                                     answer.status, ")")};
    }
    if (answer.status == 200) return json;
    const auto code = number_in(json, "code").value_or(0);
    if (code == kNotFound) return Json::object();
    const auto words = json.find("message");
    const std::string text = words != json.end() && words->is_string()
                                 ? printable(words->get_ref<const std::string&>()).substr(0, 200)
                                 : std::string("no reason");
    return Error{is_final(code) ? Blame::kUser : Blame::kWorld,
                 cat("etcd at ", name, " refuses: ", text, " (HTTP status ", answer.status, ")")};
  }

  [[nodiscard]] Error nobody(const Error& last) const {
    std::string names;
    for (const auto& each : members_) names += cat(names.empty() ? "" : ", ", each.name);
    return {Blame::kWorld,
            cat("no member of etcd answers (HOLDFAST_ETCD: ", names, "): ", last.what)};
  }

  std::vector<One> members_;
  std::size_t current_ = 0;  // The member that has answered last.
};

Etcd::Etcd(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Etcd::Etcd(Etcd&&) noexcept = default;
Etcd& Etcd::operator=(Etcd&&) noexcept = default;
Etcd::~Etcd() = default;

Result<Etcd> Etcd::open(const EtcdOptions& options) {
  const auto members = members_of(options.members);
  if (!members) return members.error();
  const bool is_tls = members->front().is_tls;
  const bool has_papers = !options.authority.empty() || !options.certificate.empty();
  if (options.certificate.empty() != options.key.empty()) {
    return Error{Blame::kUser, "HOLDFAST_ETCD_CERT and HOLDFAST_ETCD_KEY go together: set both"};
  }
  if (!is_tls && has_papers) {
    return Error{Blame::kUser,
                 "HOLDFAST_ETCD_CA or HOLDFAST_ETCD_CERT is set, but HOLDFAST_ETCD has http://, "
                 "which is in the clear: write https://"};
  }
  HttpTls tls;
  if (is_tls) {
    auto made = http_tls(options.authority, options.certificate, options.key);
    if (!made) return made.error();
    tls = *std::move(made);
  }
  return Etcd(std::make_unique<Impl>(*members, tls));
}

namespace {
Error unexpected() {
  return {Blame::kPeer,
          "etcd's answer is not as its version 3 API has it: is it etcd 3.4 or newer?"};
}
}  // namespace

Result<EtcdAnswer> Etcd::transact(const EtcdTransaction& transaction, Instant until) {
  const auto json = impl_->ask("/v3/kv/txn", to_json(transaction), until);
  if (!json) return json.error();
  const auto ranges =
      std::count_if(transaction.operations.begin(), transaction.operations.end(),
                    [](const auto& each) { return each.kind == EtcdOperation::Kind::kRange; });
  auto answer = answer_in(*json, static_cast<std::size_t>(ranges), !transaction.conditions.empty());
  if (!answer) return unexpected();
  return *std::move(answer);
}

Result<EtcdLeaseGrant> Etcd::grant(std::chrono::seconds ttl, Instant until) {
  const auto json = impl_->ask("/v3/lease/grant", {{"TTL", cat(ttl.count())}}, until);
  if (!json) return json.error();
  const auto id = number_in(*json, "ID");
  const auto got = number_in(*json, "TTL");
  if (!id || *id == 0 || !got || *got < 1 || *got > 86'400) return unexpected();
  return EtcdLeaseGrant{*id, std::chrono::seconds(*got)};
}

Result<std::optional<Duration>> Etcd::keep_alive(std::int64_t lease, Instant until) {
  const auto json = impl_->ask("/v3/lease/keepalive", {{"ID", cat(lease)}}, until);
  if (!json) return json.error();
  const auto result = json->find("result");
  if (result == json->end() || !result->is_object()) return unexpected();
  const auto ttl = number_in(*result, "TTL");
  if (!ttl || *ttl < 0 || *ttl > 86'400) return unexpected();
  return *ttl == 0 ? std::optional<Duration>() : std::chrono::seconds(*ttl);
}

Status Etcd::revoke(std::int64_t lease, Instant until) {
  const auto json = impl_->ask("/v3/lease/revoke", {{"ID", cat(lease)}}, until);
  return json ? Status{} : Status{json.error()};
}

std::string end_of(std::string prefix) {
  // The last letter of a prefix is '/' or another one of ASCII, so this does not overflow.
  ++prefix.back();
  return prefix;
}

}  // namespace holdfast::io
