// The configuration: MindSpore's file, its defaults, and errors that name file and key.
#include "tls/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/text.h"
#include "os/files.h"
#include "tls/testing/papers.h"

namespace holdfast::tls {
namespace {

constexpr const char* kPaths =
    R"("server_cert_path": "server.p12", "client_cert_path": "/c.p12", "ca_cert_path": "ca.crt")";

class ConfigFile : public testing::Test {
 protected:
  Result<Config> read(const std::string& bytes) {
    EXPECT_TRUE(os::write_file_atomically(path, bytes));
    return read_config(path);
  }
  std::string error_of(const std::string& bytes) {
    const auto config = read(bytes);
    if (config) return "none";
    EXPECT_EQ(config.error().blame, Blame::kUser);
    EXPECT_TRUE(has(config.error().what, path)) << config.error().what;
    return config.error().what;
  }

  os::TemporaryFolder folder;
  const std::string path = folder / "config.json";
};

TEST_F(ConfigFile, HasTheReferencesKeysAndDefaults) {
  const auto config = read(cat("{", kPaths, "}"));
  ASSERT_TRUE(config) << config.error().what;
  // A relative path counts from the file's own folder.
  EXPECT_EQ(config->server_cert_path, folder / "server.p12");
  EXPECT_EQ(config->client_cert_path, "/c.p12");
  EXPECT_EQ(config->ca_cert_path, folder / "ca.crt");
  EXPECT_EQ(config->crl_path, "");
  EXPECT_EQ(config->cipher_list, "");
  EXPECT_EQ(config->cert_expire_warning_time_in_day, 90);
  EXPECT_TRUE(config->warnings.empty());
}

TEST_F(ConfigFile, NamesAKeyThatMeansNothing) {
  const auto config = read(cat("{", kPaths, R"(, "recovery": {"storage_type": 1}})"));
  ASSERT_TRUE(config) << config.error().what;
  ASSERT_EQ(config->warnings.size(), 1U);
  EXPECT_TRUE(has(config->warnings.front(), "'recovery', which means nothing here"));
}

// Else nobody would notice that the revocation list is not looked up.
TEST_F(ConfigFile, RefusesAMisspeltKey) {
  const auto error = error_of(cat("{", kPaths, R"(, "crl_pth": "crl.pem"})"));
  EXPECT_TRUE(has(error, "'crl_pth': is 'crl_path' meant?")) << error;
}

TEST_F(ConfigFile, IsRefusedByTheNameOfWhatIsWrong) {
  const struct {
    std::string bytes;
    const char* error;
  } cases[] = {
      {cat("{\n", kPaths, ",\n oops}"), "is no JSON: the error is in line 3"},
      {"[]", "is no JSON object"},
      {"{}", "has no 'server_cert_path'"},
      {R"({"server_cert_path": "", "client_cert_path": "c", "ca_cert_path": "a"})",
       "has 'server_cert_path' empty"},
      {R"({"server_cert_path": 7, "client_cert_path": "c", "ca_cert_path": "a"})",
       "has 'server_cert_path' as no text"},
      {cat("{", kPaths, R"(, "crl_path": "a\u0000b"})"), "has 'crl_path' longer than"},
      {cat("{", kPaths, R"(, "cert_expire_warning_time_in_day": 6})"), "from 7 to 180"},
      {cat("{", kPaths, R"(, "cert_expire_warning_time_in_day": 181})"), "from 7 to 180"},
      {cat("{", kPaths, R"(, "cert_expire_warning_time_in_day": 90.5})"), "from 7 to 180"},
      {cat("{", kPaths, R"(, "cert_expire_warning_time_in_day": "90"})"), "from 7 to 180"},
      {std::string(std::size_t{1} << 20, ' ') + "{}", "is larger than 1048576 bytes"},
      {std::string(100'000, '['), "is no JSON"},
      {"", "is empty"},
  };
  for (const auto& each : cases) {
    const auto error = error_of(each.bytes);
    EXPECT_TRUE(has(error, each.error)) << error;
  }
}

TEST_F(ConfigFile, IsAPlainFileThatNotEverybodyMayChange) {
  EXPECT_TRUE(has(read_config(path).error().what, "No such file"));
  EXPECT_TRUE(has(read_config(folder.path()).error().what, "is no plain file"));
  // No process writes to this FIFO: the call must not wait for one.
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(has(read_config(path).error().what, "is no plain file"));
  ASSERT_TRUE(read(cat("{", kPaths, "}")));
  ASSERT_EQ(::chmod(path.c_str(), 0606), 0);
  EXPECT_TRUE(has(read_config(path).error().what, "can be changed by every user"));
}

}  // namespace
}  // namespace holdfast::tls
