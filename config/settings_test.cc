// Settings: values, defaults, errors that name what is wrong, and the generated document.
#include "config/settings.h"

#include <gtest/gtest.h>

#include <fstream>
#include <initializer_list>
#include <iterator>
#include <set>
#include <vector>

namespace holdfast::config {
namespace {

Result<Settings> read(std::initializer_list<const char*> entries) {
  std::vector<const char*> environment(entries);
  environment.push_back(nullptr);
  return from_environment(environment.data());
}

std::string error_of(std::initializer_list<const char*> entries) {
  const auto settings = read(entries);
  if (settings) return "no error";
  EXPECT_EQ(settings.error().blame, Blame::kUser);
  return settings.error().what;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Settings, HaveTheirDocumentedDefaultsInAnEmptyEnvironment) {
  const auto settings = read({});
  ASSERT_TRUE(settings) << settings.error().what;
  EXPECT_EQ(settings->role, Role::kNone);
  EXPECT_EQ(settings->sched_host, "127.0.0.1");
  EXPECT_EQ(settings->sched_port, 8118);
  EXPECT_EQ(settings->job, "port-8118");
  EXPECT_EQ(settings->topo_timeout, std::chrono::seconds(1800));
  EXPECT_EQ(settings->scheduler_timeout, settings->topo_timeout);
  EXPECT_EQ(settings->node_timeout, std::chrono::seconds(30));
  EXPECT_EQ(settings->replacement_timeout, std::chrono::seconds(600));
  EXPECT_EQ(settings->spare_fd, -1);
  EXPECT_EQ(settings->update_threads, 1);
  EXPECT_TRUE(settings->protect);
  EXPECT_EQ(settings->drift, Drift::kEnd);
  EXPECT_FALSE(settings->enable_recovery);
  EXPECT_FALSE(settings->node_id.empty());
}

TEST(Settings, DrawANewIncarnationEachTime) {
  std::set<Incarnation> seen;
  for (int i = 0; i < 8; ++i) seen.insert(read({})->incarnation);
  EXPECT_EQ(seen.size(), 8U);
}

TEST(Settings, TakeWhatTheEnvironmentSays) {
  const auto settings =
      read({"MS_ROLE=MS_WORKER", "MS_WORKER_NUM=4", "MS_SCHED_PORT=9000", "MS_NODE_ID=3",
            "MS_TOPO_TIMEOUT=-1", "MS_NODE_TIMEOUT=2.5",
            "HOLDFAST_INCARNATION=18446744073709551615", "HOLDFAST_ATTEMPT=7", "HOLDFAST_PROTECT=0",
            "HOLDFAST_DRIFT=warn", "PATH=/bin", "MS_DEV_UNKNOWN=1"});
  ASSERT_TRUE(settings) << settings.error().what;
  EXPECT_EQ(settings->role, Role::kWorker);
  EXPECT_EQ(settings->worker_num, 4);
  EXPECT_EQ(settings->sched_port, 9000);
  EXPECT_EQ(settings->job, "port-9000");
  EXPECT_EQ(settings->node_id, "3");
  EXPECT_EQ(settings->topo_timeout, kNever);
  EXPECT_EQ(settings->scheduler_timeout, kNever);
  EXPECT_EQ(settings->node_timeout, std::chrono::milliseconds(2500));
  EXPECT_EQ(settings->incarnation, ~Incarnation{0});
  EXPECT_EQ(settings->attempt, 7U);
  EXPECT_FALSE(settings->protect);
  EXPECT_EQ(settings->drift, Drift::kWarn);
}

TEST(Settings, KeepNoPasswordAndLeaveNoneInTheEnvironment) {
  std::string password = "HOLDFAST_TLS_SERVER_PASSWORD=swordfish";
  std::string other = "HOLDFAST_TLS_SERVER_PASSWORD_FILE=/x";
  char* environment[] = {other.data(), password.data(), nullptr};
  const auto settings = from_environment(environment);
  ASSERT_TRUE(settings) << settings.error().what;
  EXPECT_TRUE(settings->tls_server_password.given);
  EXPECT_FALSE(settings->tls_client_password.given);
  EXPECT_EQ(settings->tls_server_password_file, "/x");
  EXPECT_EQ(take_secret(environment, "HOLDFAST_TLS_SERVER_PASSWORD"), "swordfish");
  EXPECT_FALSE(has(password, "swordfish"));  // The bytes that a child would inherit.
  EXPECT_EQ(take_secret(environment, "HOLDFAST_TLS_SERVER_PASSWORD"), "");
  EXPECT_FALSE(from_environment(environment)->tls_server_password.given);
  EXPECT_EQ(other, "HOLDFAST_TLS_SERVER_PASSWORD_FILE=/x");
}

// A job that was meant to be encrypted must not run in the clear.
TEST(Settings, RefuseAMisspeltTlsConfiguration) {
  EXPECT_TRUE(has(error_of({"HOLDFAST_TLS_CONFG=/config.json"}), "HOLDFAST_TLS_CONFIG"));
}

TEST(Settings, TakeATimeOrANumberOfSteps) {
  const auto every = [](const char* text) {
    const auto settings = read({(std::string("HOLDFAST_SNAPSHOT_EVERY=") + text).c_str()});
    EXPECT_TRUE(settings) << settings.error().what;
    return settings->snapshot_every;
  };
  EXPECT_EQ(every("30s").time, std::chrono::seconds(30));
  EXPECT_EQ(every("5min").time, std::chrono::minutes(5));
  EXPECT_EQ(every("5m").time, std::chrono::minutes(5));
  EXPECT_EQ(every("1.5h").time, std::chrono::minutes(90));
  EXPECT_EQ(every("100ms").time, std::chrono::milliseconds(100));
  EXPECT_EQ(every("100ms").steps, 0U);
  EXPECT_EQ(every("100").steps, 100U);
  EXPECT_EQ(every("100").time, Duration{});
  EXPECT_EQ(read({})->snapshot_every.time, std::chrono::minutes(5));
}

TEST(Settings, TreatAnEmptyValueAsUnset) {
  const auto settings = read({"MS_SCHED_PORT=", "MS_ROLE=", "HOLDFAST_JOB="});
  ASSERT_TRUE(settings) << settings.error().what;
  EXPECT_EQ(settings->sched_port, 8118);
  EXPECT_EQ(settings->role, Role::kNone);
  EXPECT_EQ(settings->job, "port-8118");
}

TEST(Settings, NameTheVariableTheValueAndWhatIsAllowed) {
  for (const char* value : {"0", "65536", "80x", " 80", "1e3", "0x50", "-1"}) {
    const std::string entry = std::string("MS_SCHED_PORT=") + value;
    const std::string what = error_of({entry.c_str()});
    EXPECT_TRUE(has(what, "MS_SCHED_PORT is '" + std::string(value) + "'")) << what;
    EXPECT_TRUE(has(what, "from 1 to 65535")) << what;
  }
  EXPECT_TRUE(has(error_of({"MS_ENABLE_RECOVERY=yes"}), "0 or 1"));
  EXPECT_TRUE(has(error_of({"MS_TOPO_TIMEOUT=nan"}), "seconds"));
  EXPECT_TRUE(has(error_of({"MS_TOPO_TIMEOUT=1e300"}), "seconds"));
  EXPECT_TRUE(has(error_of({"HOLDFAST_INCARNATION=18446744073709551616"}), "2^64"));
  EXPECT_TRUE(has(error_of({"HOLDFAST_JOB=../evil"}), "letters"));
  EXPECT_TRUE(has(error_of({"HOLDFAST_JOB=.hidden"}), "letters"));
  EXPECT_TRUE(has(error_of({"HOLDFAST_UPDATE_THREADS=17"}), "from 1 to 16"));
  EXPECT_TRUE(has(error_of({"MS_WORKER_NUM=10001"}), "from 1 to 10000"));
  for (const char* value : {"0", "-1", "5 min", "1e9h", "s", "0.001s", "nan s", "7d"}) {
    const std::string entry = std::string("HOLDFAST_SNAPSHOT_EVERY=") + value;
    EXPECT_TRUE(has(error_of({entry.c_str()}), "as in 30s, 5min or 2h")) << value;
  }
  for (const char* process :
       {"garbage", "1", "1:2", "1:2:", "0:1:2", "-5:1:2", "1:2:3:4", "a:1:2"}) {
    const std::string entry = std::string("HOLDFAST_AGENT=") + process;
    EXPECT_TRUE(has(error_of({entry.c_str()}), "HOLDFAST_AGENT is '")) << process;
  }
  EXPECT_TRUE(read({"HOLDFAST_AGENT=812:99213:4026531836"}));
}

TEST(Settings, TakeAnAddressInBracketsAndNoNegativeRank) {
  EXPECT_EQ(read({"MS_SCHED_HOST=[::1]"})->sched_host, "::1");
  EXPECT_EQ(read({"MS_SCHED_HOST=::1"})->sched_host, "::1");
  EXPECT_TRUE(has(error_of({"MS_NODE_ID=-1"}), "MS_NODE_ID is '-1', which is no rank"));
  for (const char* name : {"MS_NODE_ID=-", "MS_NODE_ID=-a", "MS_NODE_ID=1-1"}) {
    EXPECT_TRUE(read({name})) << name;
  }
}

TEST(Settings, RefuseTimesSoShortThatNoJobCouldLive) {
  const std::vector<std::pair<std::string, std::string>> lowest = {
      {"MS_NODE_TIMEOUT", "2"},
      {"MS_TOPO_TIMEOUT", "1"},
      {"HOLDFAST_REPLACEMENT_TIMEOUT", "1"},
      {"HOLDFAST_SCHEDULER_TIMEOUT", "1"}};
  for (const auto& [name, least] : lowest) {
    for (const char* value : {"0", "0.001", "0.99"}) {
      const std::string what = error_of({(name + "=" + value).c_str()});
      EXPECT_TRUE(has(what, name + " is '" + value + "'")) << what;
      EXPECT_TRUE(has(what, "seconds from " + least + " to")) << what;
    }
    EXPECT_TRUE(read({(name + "=" + least).c_str()})) << name;
    EXPECT_TRUE(read({(name + "=-1").c_str()})) << name;
  }
}

TEST(Settings, RefuseParameterServersAndUnknownRoles) {
  EXPECT_TRUE(has(error_of({"MS_ROLE=MS_PSERVER", "MS_WORKER_NUM=1"}), "MS_SERVER_NUM is not set"));
  EXPECT_TRUE(has(error_of({"MS_ROLE=MS_SERVER", "MS_WORKER_NUM=1", "MS_SERVER_NUM=-1"}),
                  "MS_SERVER_NUM is '-1'"));
  EXPECT_TRUE(has(error_of({"MS_ROLE=worker"}), "MS_SCHED or MS_WORKER"));
}

TEST(Settings, RequireTheNumberOfWorkersWhereThereIsARole) {
  EXPECT_TRUE(has(error_of({"MS_ROLE=MS_SCHED"}), "MS_WORKER_NUM is not set"));
}

TEST(Settings, NameTheNearestKnownVariable) {
  const std::string what = error_of({"HOLDFAST_REPLACEMENT_TIMEOT=5"});
  EXPECT_TRUE(has(what, "HOLDFAST_REPLACEMENT_TIMEOT")) << what;
  EXPECT_TRUE(has(what, "nearest is HOLDFAST_REPLACEMENT_TIMEOUT")) << what;
}

TEST(Settings, LeaveAloneWhatIsNotOurs) {
  EXPECT_TRUE(read({"HOLDFAST_TORCH_PATH=/x", "HOLDFAST_PYTHON=/y", "HOLDFAST_TEST_SEED=1",
                    "HOLDFAST_CI=1", "HOLDFAST_BENCH_FAST=1", "HOLDFAST_SEEDS=/z",
                    "HOLDFAST_MINDSPORE_OFF=1", "no equals sign"}));
}

TEST(Settings, NameAVariableThatOnlyBeginsLikeOneThatIsNotOurs) {
  for (const char* wrong : {"HOLDFAST_TESTX=1", "HOLDFAST_CIVENV=/x", "HOLDFAST_SEEDSS=/x"}) {
    EXPECT_TRUE(has(error_of({wrong}), "which is no setting of Holdfast")) << wrong;
  }
}

TEST(Settings, AreDocumentedAsTheyAre) {
  std::ifstream file(HOLDFAST_SOURCE_DIR "/docs/settings.md");
  const std::string written{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(written, markdown()) << "run `holdfast settings --markdown > docs/settings.md`";
}

}  // namespace
}  // namespace holdfast::config
