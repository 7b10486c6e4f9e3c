// Passwords: where they come from, who may read them, and that none is left in memory or shown.
#include "tls/password.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>

#include "os/files.h"
#include "tls/testing/papers.h"

namespace holdfast::tls {
namespace {

config::Settings settings_with(const std::string& file, bool given = false) {
  config::Settings settings;
  settings.tls_server_password_file = file;
  settings.tls_server_password.given = given;
  return settings;
}

std::string error_of(const Result<Password>& password) {
  return password ? "none" : password.error().what;
}

TEST(Password, IsTakenOutOfTheEnvironment) {
  std::string entry = "HOLDFAST_TLS_SERVER_PASSWORD=swordfish";
  char* environment[] = {entry.data(), nullptr};
  const auto password = password_of(Role::kServer, settings_with("", true), environment);
  ASSERT_TRUE(password) << password.error().what;
  EXPECT_STREQ(password->text(), "swordfish");
  EXPECT_FALSE(has(entry, "swordfish"));
}

TEST(Password, IsTheFirstLineOfAFile) {
  const os::TemporaryFolder folder;
  for (const char* bytes : {"swordfish", "swordfish\n", "swordfish\r\nmore\n"}) {
    ASSERT_TRUE(os::write_file_atomically(folder / "p", bytes));
    const auto password = password_of(Role::kServer, settings_with(folder / "p"), nullptr);
    ASSERT_TRUE(password) << password.error().what;
    EXPECT_STREQ(password->text(), "swordfish");
  }
}

TEST(Password, IsRefusedWhereOthersMayKnowIt) {
  const os::TemporaryFolder folder;
  const std::string path = folder / "p";
  const auto error = [&](const std::string& of) {
    return error_of(password_of(Role::kServer, settings_with(of), nullptr));
  };
  EXPECT_TRUE(has(error(path), "HOLDFAST_TLS_SERVER_PASSWORD_FILE")) << error(path);
  EXPECT_TRUE(has(error(path), "No such file")) << error(path);
  ASSERT_TRUE(os::write_file_atomically(path, "swordfish\n", 0640));
  EXPECT_TRUE(has(error(path), "is open to other users")) << error(path);
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(error(path), "none");
  ASSERT_EQ(::symlink(path.c_str(), (folder / "link").c_str()), 0);
  EXPECT_TRUE(has(error(folder / "link"), "is a link")) << error(folder / "link");
  if (::chown(path.c_str(), 65534, 65534) == 0) {  // Only root may give a file away.
    EXPECT_TRUE(has(error(path), "belongs to another user")) << error(path);
  }
  ASSERT_TRUE(os::write_file_atomically(path, "\nswordfish\n"));
  EXPECT_TRUE(has(error(path), "no password in its first line")) << error(path);
  ASSERT_TRUE(os::write_file_atomically(path, std::string(2000, 'x')));
  EXPECT_TRUE(has(error(path), "larger than 1024 bytes")) << error(path);
}

TEST(Password, IsSetInOneWayOnly) {
  std::string entry = "HOLDFAST_TLS_SERVER_PASSWORD=swordfish";
  char* environment[] = {entry.data(), nullptr};
  const auto error = error_of(password_of(Role::kServer, settings_with("/x", true), environment));
  EXPECT_TRUE(has(error, "are both set: set one")) << error;
  EXPECT_FALSE(has(error, "swordfish"));
}

// Waits until the terminal shows no input. The prompt comes just before.
void until_echo_is_off(int terminal) {
  termios modes{};
  do {
    ::sched_yield();
    ASSERT_EQ(::tcgetattr(terminal, &modes), 0);
  } while ((modes.c_lflag & ECHO) != 0);
}

// The child of forkpty() has a terminal of its own, and nothing else.
TEST(Password, IsAskedForOnTheTerminalWithoutEcho) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto password = password_of(Role::kClient, config::Settings(), nullptr);
    ::_exit(password && std::string_view(password->text()) == "swordfish" ? 0 : 1);
  }
  std::string shown;
  std::array<char, 256> block{};
  bool answered = false;
  for (ssize_t got = 0; (got = ::read(terminal, block.data(), block.size())) > 0;) {
    shown.append(block.data(), static_cast<std::size_t>(got));
    if (!answered && has(shown, "Password of the client's certificate: ")) {
      until_echo_is_off(terminal);
      answered = ::write(terminal, "swordfish\n", 10) == 10;
    }
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ::close(terminal);
  EXPECT_EQ(status, 0) << shown;
  EXPECT_FALSE(has(shown, "swordfish")) << shown;
}

TEST(Password, ThatIsNotSetIsNamedWhereThereIsNoTerminal) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::setsid();  // Now the process has no terminal any more.
    const std::string error = error_of(password_of(Role::kClient, config::Settings(), nullptr));
    ::_exit(::write(ends[1], error.data(), error.size()) < 0 ? 1 : 0);
  }
  ::close(ends[1]);
  std::array<char, 512> error{};
  EXPECT_GT(::read(ends[0], error.data(), error.size() - 1), 0);
  ::close(ends[0]);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(has(error.data(), "set HOLDFAST_TLS_CLIENT_PASSWORD_FILE or ")) << error.data();
}

}  // namespace
}  // namespace holdfast::tls
