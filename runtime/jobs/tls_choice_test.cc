// TLS as a program chooses it, and as the scheduler leaves it for processes that do not run the
// program.
#include "runtime/jobs/tls_choice.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "base/text.h"
#include "os/files.h"
#include "os/host.h"
#include "runtime/jobs/membership.h"
#include "tls/testing/papers.h"

namespace holdfast::runtime {
namespace {

using tls::has;
using tls::Password;
using tls::Role;

// Runs `test` in a process of its own, because a choice lasts as long as its process.
void choose_in_a_child(const std::function<void()>& test) {
  EXPECT_EXIT(
      {
        test();
        std::exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

std::string config_of(const tls::Papers& papers) {
  const std::string path = papers.path("config.json");
  EXPECT_TRUE(os::write_file_atomically(
      path, R"({"server_cert_path": "server.p12", "client_cert_path": "client.p12",
                "ca_cert_path": "ca.crt", "cert_expire_warning_time_in_day": 7})"));
  return path;
}

mode_t mode_of(const std::string& path) {
  struct stat found {};
  EXPECT_EQ(::stat(path.c_str(), &found), 0) << path;
  return found.st_mode & 0777U;
}

TEST(TlsChoice, AWorkerOpensItsOwnCertificateOnly) {
  const tls::Papers papers;
  const std::string config = config_of(papers);
  choose_in_a_child([&] {
    const config::Settings settings;
    const Password client(tls::kClientPassword);
    const Password wrong("wrong");
    const auto refused = choose_tls(settings, config, wrong, wrong);
    ASSERT_FALSE(refused);
    EXPECT_TRUE(has(refused.error().what, "client.p12")) << refused.error().what;
    EXPECT_TRUE(choose_tls(settings, config, client, wrong));
    EXPECT_EQ(with_program_tls(settings)->tls_config, config);
    EXPECT_TRUE(tls_context_of(*with_program_tls(settings), Role::kClient));
    EXPECT_FALSE(choose_tls(settings, config + ".other", client, wrong));
    EXPECT_FALSE(may_stay_in_the_clear());
  });
}

// The program may have caught the error.
TEST(TlsChoice, ThatFailedIsNotFollowedByTheClear) {
  const tls::Papers papers;
  const std::string config = config_of(papers);
  const std::string directory = *os::runtime_directory(cat("tls-refused-", ::getpid()));
  choose_in_a_child([&] {
    config::Settings settings;
    const Password client(tls::kClientPassword);
    EXPECT_FALSE(choose_tls(settings, "/nowhere.json", client, client));
    for (const auto& status : {check_tls(settings, false), check_tls(settings, true),
                               Status(membership_of_scheduler(settings, directory).error()),
                               Status(with_tls(settings, directory).error())}) {
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().blame, Blame::kUser);
      EXPECT_TRUE(has(status.error().what, "/nowhere.json")) << status.error().what;
    }
    EXPECT_FALSE(may_stay_in_the_clear());
    auto by_environment = settings;
    by_environment.tls_config = config;
    EXPECT_EQ(with_program_tls(by_environment)->tls_config, config) << "that is TLS, too";
    EXPECT_TRUE(choose_tls(settings, config, client, client)) << "and the program may try again";
    EXPECT_TRUE(with_tls(settings, directory));
  });
  ::rmdir(directory.c_str());
}

TEST(TlsChoice, ComesTooLateOnceAConnectionStandsInTheClear) {
  const tls::Papers papers;
  const std::string config = config_of(papers);
  choose_in_a_child([&] {
    EXPECT_TRUE(may_stay_in_the_clear());
    const auto refused = choose_tls({}, config, Password(tls::kClientPassword), Password(""));
    ASSERT_FALSE(refused);
    EXPECT_TRUE(has(refused.error().what, "too late")) << refused.error().what;
    EXPECT_TRUE(with_program_tls({})) << "it was to be in the clear, and is";
  });
}

TEST(TlsChoice, TheSchedulerLeavesItForOthers) {
  const tls::Papers papers;
  const std::string directory = *os::runtime_directory(cat("tls-choice-", ::getpid()));
  const std::string config = config_of(papers);
  choose_in_a_child([&] {
    config::Settings settings;
    settings.role = config::Role::kScheduler;
    EXPECT_FALSE(choose_tls(settings, config, Password(tls::kClientPassword), Password("wrong")));
    ASSERT_TRUE(choose_tls(settings, config, Password(tls::kClientPassword),
                           Password(tls::kServerPassword)));
    EXPECT_TRUE(leave_tls(*with_program_tls(settings), directory));
  });
  const auto found = with_tls({}, directory);
  ASSERT_TRUE(found) << found.error().what;
  EXPECT_EQ(found->tls_config, config);
  EXPECT_EQ(mode_of(directory + "/tls.json"), 0600U);
  EXPECT_EQ(mode_of(found->tls_client_password_file), 0600U);
  EXPECT_TRUE(tls_context_of(*found, Role::kClient));
  config::Settings own;
  own.tls_config = "/own.json";
  EXPECT_EQ(with_tls(own, directory)->tls_config, "/own.json") << "a setting comes first";
  EXPECT_TRUE(leave_tls({}, directory));
  EXPECT_TRUE(with_tls({}, directory)->tls_config.empty()) << "a scheduler in the clear";
  EXPECT_TRUE(os::open_runtime_directory(directory)->clear());
  ::rmdir(directory.c_str());
}

// The first attempt wipes the variable. The next one sees none, or, with the same settings, an
// empty one.
TEST(TlsChoice, APasswordOutlivesAnAttemptThatFailed) {
  for (const bool given : {false, true}) {
    const tls::Papers papers;
    const std::string config = config_of(papers);
    choose_in_a_child([&] {
      config::Settings settings;
      settings.tls_config = config;
      settings.tls_client_password.given = true;
      ::setenv("HOLDFAST_TLS_CLIENT_PASSWORD", std::string(tls::kClientPassword).c_str(), 1);
      std::filesystem::rename(papers.path("ca.crt"), papers.path("elsewhere"));
      EXPECT_FALSE(tls_context_of(settings, Role::kClient));
      EXPECT_STREQ(::getenv("HOLDFAST_TLS_CLIENT_PASSWORD"), "");
      std::filesystem::rename(papers.path("elsewhere"), papers.path("ca.crt"));
      settings.tls_client_password.given = given;
      const auto again = tls_context_of(settings, Role::kClient);
      EXPECT_TRUE(again) << again.error().what;
    });
  }
}

// After a wrong password, the right one is accepted.
TEST(TlsChoice, ANewPasswordIsTakenAfterAWrongOne) {
  const tls::Papers papers;
  const std::string config = config_of(papers);
  choose_in_a_child([&] {
    config::Settings settings;
    settings.tls_config = config;
    settings.tls_client_password.given = true;
    ::setenv("HOLDFAST_TLS_CLIENT_PASSWORD", "wrong", 1);
    EXPECT_FALSE(tls_context_of(settings, Role::kClient));
    ::setenv("HOLDFAST_TLS_CLIENT_PASSWORD", std::string(tls::kClientPassword).c_str(), 1);
    const auto again = tls_context_of(settings, Role::kClient);
    EXPECT_TRUE(again) << again.error().what;
  });
}

}  // namespace
}  // namespace holdfast::runtime
