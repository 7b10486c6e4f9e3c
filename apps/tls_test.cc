// `holdfast tls`: `check` accepts what `new` makes, and names everything that it refuses.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "os/files.h"
#include "os/spawn.h"
#include "os/testing.h"

namespace holdfast::apps {
namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

class Tls : public testing::Test {
 protected:
  // Runs `holdfast tls` without a terminal; returns the exit code. Its output is in `said`.
  int run(const std::vector<std::string>& words, std::vector<std::string> environment = {}) {
    std::filesystem::remove(folder / "output");
    os::SpawnOptions options;
    options.argv = {"/usr/bin/setsid", "--wait", HOLDFAST, "tls"};
    options.argv.insert(options.argv.end(), words.begin(), words.end());
    options.environment = std::move(environment);
    options.output = folder / "output";
    const auto child = os::spawn(options);
    EXPECT_TRUE(child) << child.error().what;
    const auto exit = os::wait_for(child->pidfd.get());
    said = *os::read_file(folder / "output");
    return exit->shell_code();
  }

  int make(std::vector<std::string> options = {}) {
    options.insert(options.begin(), {"new", made});
    return run(options);
  }

  int check(const std::string& server = "server", const std::string& client = "client",
            std::vector<std::string> environment = {}) {
    environment.push_back(
        cat("HOLDFAST_TLS_SERVER_PASSWORD_FILE=", made, '/', server, ".password"));
    environment.push_back(
        cat("HOLDFAST_TLS_CLIENT_PASSWORD_FILE=", made, '/', client, ".password"));
    return run({"check", made + "/config.json"}, std::move(environment));
  }

  // Replaces `part` in a file of the new folder by `by`.
  void replace(const std::string& name, const std::string& part, const std::string& by) {
    auto bytes = *os::read_file(made + "/" + name);
    const auto at = bytes.find(part);
    ASSERT_NE(at, std::string::npos) << bytes;
    bytes.replace(at, part.size(), by);
    ASSERT_TRUE(os::write_file_atomically(made + "/" + name, bytes));
  }

  [[nodiscard]] mode_t mode_of(const std::string& path) const {
    struct stat about {};
    EXPECT_EQ(::stat(path.c_str(), &about), 0) << path;
    return about.st_mode & 07777;
  }

  os::TemporaryFolder folder;
  const std::string made = folder / "new/authority";
  std::string said;
};

TEST_F(Tls, CheckAcceptsWhatNewHasMade) {
  ASSERT_EQ(make(), 0) << said;
  EXPECT_EQ(mode_of(made), 0700U);
  const auto names = os::names_in(made);
  EXPECT_EQ(names,
            (std::vector<std::string>{"ca.crt", "ca.key", "client.p12", "client.password",
                                      "config.json", "crl.pem", "server.p12", "server.password"}));
  for (const auto& name : names) EXPECT_EQ(mode_of(made + "/" + name), 0600U) << name;
  EXPECT_EQ(check(), 0) << said;
  EXPECT_TRUE(has(said, "TLS 1.2: a handshake in memory succeeds")) << said;
  EXPECT_TRUE(has(said, "TLS 1.3: a handshake in memory succeeds")) << said;
  EXPECT_FALSE(has(said, "warning")) << said;
}

TEST_F(Tls, NewTouchesNothingThatIsThere) {
  ASSERT_EQ(make(), 0) << said;
  const auto key = *os::read_file(made + "/ca.key");
  EXPECT_EQ(make(), 1);
  EXPECT_TRUE(has(said, cat(made, " is there already"))) << said;
  EXPECT_EQ(*os::read_file(made + "/ca.key"), key);
  EXPECT_EQ(os::names_in(folder / "new").size(), 1U);  // No draft is left.
  ASSERT_TRUE(os::write_file_atomically(folder / "file", "mine"));
  EXPECT_EQ(run({"new", folder / "file"}), 1);
  EXPECT_EQ(*os::read_file(folder / "file"), "mine");
  ASSERT_EQ(::symlink("elsewhere", (folder / "link").c_str()), 0);
  EXPECT_EQ(run({"new", folder / "link"}), 1) << said;
  EXPECT_FALSE(std::filesystem::exists(folder / "elsewhere"));
}

TEST_F(Tls, NewDrawsEachPasswordAnew) {
  ASSERT_EQ(make({"--hosts", "node1,10.0.0.1", "--days", "30"}), 0) << said;
  std::set<std::string> passwords;
  for (const char* role : {"server", "client"}) {
    passwords.insert(*os::read_file(cat(made, '/', role, ".password")));
  }
  EXPECT_EQ(passwords.size(), 2U);
  for (const auto& password : passwords) {
    ASSERT_EQ(password.size(), 49U);
    EXPECT_FALSE(has(said, password.substr(0, 48)));
  }
  EXPECT_EQ(check(), 0) << said;
}

TEST_F(Tls, CheckSaysAllThatWouldBeRefused) {
  ASSERT_EQ(make(), 0) << said;
  EXPECT_EQ(check("client", "server"), 1);
  EXPECT_TRUE(has(said, "server.p12, does not open with the password")) << said;
  EXPECT_TRUE(has(said, "client.p12, does not open with the password")) << said;
  EXPECT_FALSE(has(said, os::read_file(made + "/server.password")->substr(0, 48)));
  replace("config.json", "ECDHE-ECDSA-AES128-GCM-SHA256", "AES128-SHA");
  EXPECT_EQ(check(), 1);
  EXPECT_TRUE(has(said, "weak ciphers: AES128-SHA")) << said;
  EXPECT_EQ(said.find("weak ciphers"), said.rfind("weak ciphers"));  // Once, not for each role.
}

TEST_F(Tls, CheckComparesTheServersNames) {
  ASSERT_EQ(make({"--hosts", "trainer-0,10.0.0.5"}), 0) << said;
  EXPECT_EQ(check(), 0) << said;
  EXPECT_TRUE(has(said, "MS_SCHED_HOST is not set")) << said;
  for (const std::string host : {"trainer-0", "10.0.0.5"}) {
    EXPECT_EQ(check("server", "client", {"MS_SCHED_HOST=" + host}), 0) << said;
    EXPECT_TRUE(has(said, "for the host " + host)) << said;
  }
  EXPECT_EQ(check("server", "client", {"MS_SCHED_HOST=10.0.0.6"}), 1);
  EXPECT_TRUE(has(said, "the client: the server's certificate")) << said;
  EXPECT_TRUE(has(said, "10.0.0.6") || has(said, "name")) << said;
}

TEST_F(Tls, CheckFindsCiphersThatFitNoCertificate) {
  ASSERT_EQ(make(), 0) << said;
  replace("config.json", "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:", "");
  replace("config.json", "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256");
  EXPECT_EQ(check(), 1);
  EXPECT_TRUE(has(said, "TLS 1.2, the server: no cipher is in the lists of both")) << said;
  EXPECT_TRUE(has(said, "TLS 1.3: a handshake in memory succeeds")) << said;
  replace("config.json", "ECDHE-RSA-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256");
  EXPECT_EQ(check(), 0) << said;
  EXPECT_TRUE(has(said, "TLS 1.2: not spoken")) << said;
}

TEST_F(Tls, CheckWarnsOfWhatABareWordWouldNotTell) {
  ASSERT_EQ(make({"--days", "20"}), 0) << said;
  replace("config.json", "_in_day\": 7", "_in_day\": 90");
  replace("config.json", "\"crl.pem\"", "\"\"");
  replace("config.json", "ECDHE-ECDSA-AES256", "ECDHE-E CDSA-AES256");
  EXPECT_EQ(check(), 0) << said;
  for (const char* words :
       {"warning: the server's certificate", "warning: the client's certificate",
        "warning: the authority", "warning: crl_path is empty", "warning: cipher_list has"}) {
    EXPECT_TRUE(has(said, words)) << words << ": " << said;
  }
}

TEST_F(Tls, CheckNamesWhatIsNotSet) {
  ASSERT_EQ(make(), 0) << said;
  EXPECT_EQ(run({"check", made + "/config.json"}), 1);
  EXPECT_TRUE(has(said, "set HOLDFAST_TLS_SERVER_PASSWORD_FILE")) << said;
  EXPECT_EQ(run({"check", made + "/none.json"}), 1);
  EXPECT_TRUE(has(said, "none.json")) << said;
  EXPECT_EQ(run({"check", made + "/config.json"}, {"HOLDFAST_TLS_SERVER_PASWORD=x"}), 1);
  EXPECT_TRUE(has(said, "the nearest is HOLDFAST_TLS_SERVER_PASSWORD")) << said;
}

TEST_F(Tls, AWrongCommandLineIsSaidAsSuch) {
  for (const auto& words :
       std::vector<std::vector<std::string>>{{},
                                             {"newer"},
                                             {"new"},
                                             {"check"},
                                             {"check", "a", "b"},
                                             {"new", "--days", "0", made},
                                             {"new", "--hosts", "a b", made},
                                             {"new", "--hosts", "a,URI:x/y", made}}) {
    EXPECT_EQ(run(words), 2) << said;
    EXPECT_TRUE(has(said, "holdfast tls: ")) << said;
  }
  EXPECT_FALSE(std::filesystem::exists(made));
  EXPECT_EQ(run({"new", "--hosts", "a,b", made}), 0) << said;  // `made` must not become a host.
}

}  // namespace
}  // namespace holdfast::apps
