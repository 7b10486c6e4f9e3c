// Jobs whose connections are attacked, or use TLS.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/testing/job.h"
#include "apps/testing/secure.h"
#include "base/prng.h"
#include "base/text.h"
#include "os/fd.h"
#include "os/files.h"
#include "os/folder.h"
#include "os/host.h"
#include "os/testing.h"
#include "tls/testing/papers.h"

namespace holdfast::apps {
namespace {

using tls::Papers;

// Megabytes that the process holds in memory.
double resident(pid_t pid) {
  const auto text = os::read_file(cat("/proc/", pid, "/statm"));
  if (!text) return 0;
  return std::strtod(text->c_str() + text->find(' '), nullptr) *
         static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

// The results of all ranks, as bytes.
std::vector<std::string> results(const Job& job) {
  std::vector<std::string> all;
  for (const auto& name : os::names_in(job.folder + "/out")) {
    all.push_back(*os::read_file(cat(job.folder, "/out/", name)));
  }
  return all;
}

void put_under_tls(Job& job, const Papers& papers) {
  for (auto& variable : tls_environment(papers)) job.environment.push_back(std::move(variable));
}

// A job under TLS loses its scheduler and a worker, and ends with the bits of one in the clear.
TEST(Links, UnderTlsAJobGoesOnWithTheSameBits) {
  std::vector<std::string> in_the_clear;
  for (const bool tls : {false, true}) {
    Job job(tls ? "tls" : "clear");
    const Papers papers;
    if (tls) put_under_tls(job, papers);
    job.launch(toy(job, 400, {"--join", "True", "--worker_num", "2"}));
    ASSERT_TRUE(until([&] { return job.processes("MS_ROLE=MS_WORKER").size() == 2; }))
        << job.output();
    if (tls) {
      ASSERT_TRUE(until([&] { return has(job.log("scheduler.log"), "workers are here"); }))
          << job.output() << job.log("scheduler.log");
      ASSERT_TRUE(job.kill("MS_ROLE=MS_SCHED"));
      ASSERT_TRUE(until([&] { return count(job.log("scheduler.log"), "serves again") == 1; }));
      ASSERT_TRUE(job.kill("MS_ROLE=MS_WORKER"));
      const std::vector<std::string> secrets = {std::string(tls::kServerPassword),
                                                std::string(tls::kClientPassword)};
      for (const pid_t pid : job.processes()) {
        for (const char* file : {"/environ", "/cmdline"}) {
          const auto text = os::read_file(cat("/proc/", pid, file));
          for (const auto& secret : secrets) EXPECT_FALSE(text && has(*text, secret)) << pid;
        }
      }
    }
    EXPECT_EQ(job.wait(), 0) << job.output();
    EXPECT_TRUE(job.nothing_left());
    if (!tls) in_the_clear = results(job);
    EXPECT_EQ(results(job), in_the_clear);
    EXPECT_EQ(in_the_clear.size(), 2U);
    for (const auto& name : os::names_in(job.logs)) {
      EXPECT_FALSE(has(job.log(name), std::string(tls::kClientPassword))) << name;
    }
  }
}

// The scheduler leaves its TLS configuration in the job's folder for commands such as `status`.
TEST(Links, StatusNeedsNoSettingUnderTls) {
  Job job("tls-status");
  const Papers papers;
  const auto usual = job.environment;
  put_under_tls(job, papers);
  job.launch(toy(job, 100'000'000, {"--join", "True", "--worker_num", "1"}));
  ASSERT_TRUE(until([&] { return has(job.log("scheduler.log"), "the one worker is here"); }))
      << job.output();
  EXPECT_TRUE(has(job.log("scheduler.log"), cat(job.port, " under TLS, process ")));
  job.environment = usual;
  EXPECT_TRUE(until([&] { return job.status("version") > 0; })) << job.output();
  EXPECT_EQ(job.wait(job.start({HOLDFAST, "status", "--job", job.name}, {}), 30), 0);
  EXPECT_TRUE(has(job.output(), cat("job ", job.name, " under TLS: "))) << job.output();
}

// Whether the process waits for a lock of a file or folder.
bool waits_for_lock(pid_t pid) {
  const auto locks = os::read_file("/proc/locks");
  std::istringstream lines(locks ? *locks : "");
  for (std::string line; std::getline(lines, line);) {
    if (has(line, "-> FLOCK") && has(line, cat(' ', pid, ' '))) return true;
  }
  return false;
}

// A dead job of the same name has left its folder, and `holdfast clean` removes it just when the
// new job begins.
TEST(Links, UnderTlsAJobBeginsThoughItsFolderIsRemovedJustThen) {
  Job job("tls-clean");
  const Papers papers;
  put_under_tls(job, papers);
  const auto directory = os::runtime_directory(job.name);
  ASSERT_TRUE(directory) << directory.error().what;
  ASSERT_TRUE(os::write_file_atomically(*directory + "/scheduler.json", "{}"));
  os::Fd turn = os::Folder::open(os::folder_of(*directory))->wait_for_lock();
  ASSERT_TRUE(turn);
  job.launch(toy(job, 10, {"--join", "True", "--worker_num", "1"}));
  EXPECT_TRUE(until([&] { return waits_for_lock(job.pid(0)); })) << job.output();
  std::filesystem::remove_all(*directory);
  turn.reset();
  EXPECT_EQ(job.wait(), 0) << job.output() << job.log("scheduler.log");
  EXPECT_TRUE(job.nothing_left());
}

TEST(Links, AWrongPasswordEndsTheJobBeforeItBegins) {
  Job job("password");
  const Papers papers;
  put_under_tls(job, papers);
  job.environment.back() = "HOLDFAST_TLS_CLIENT_PASSWORD=wrong";
  job.launch(toy(job, 10, {"--join", "True", "--worker_num", "1"}));
  EXPECT_EQ(job.wait(), 2) << job.output();
  EXPECT_TRUE(has(job.output(), "client.p12")) << job.output();
  EXPECT_TRUE(has(job.output(), "password")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

// A scheduler and a worker by hand, one with TLS and the other in clear text: each says what the
// other one does. Their jobs have different names; else the worker would find the scheduler's TLS
// configuration in the job's folder.
void expect_both_say(bool is_scheduler_under_tls, const std::string& scheduler_says,
                     const std::string& worker_says) {
  Job job(is_scheduler_under_tls ? "plain-to-tls" : "tls-to-plain");
  const Papers papers;
  const std::string token = job.folder + "/token";
  ASSERT_TRUE(os::write_file_atomically(token, "0123456789abcdef"));
  const auto usual = job.environment;
  const auto start = [&](bool tls, std::vector<std::string> more) {
    job.environment = usual;
    if (tls) put_under_tls(job, papers);
    job.environment.push_back("HOLDFAST_TOKEN_FILE=" + token);
    more.insert(more.end(), {"MS_WORKER_NUM=1", cat("MS_SCHED_PORT=", job.port)});
    return job.start(toy_command(job, 10), more);
  };
  (void)start(is_scheduler_under_tls, {"MS_ROLE=MS_SCHED"});
  ASSERT_TRUE(until([&] { return has(job.output(), "serves job"); })) << job.output();
  const auto worker =
      start(!is_scheduler_under_tls,
            {"MS_ROLE=MS_WORKER", "HOLDFAST_SCHEDULER_TIMEOUT=1", "HOLDFAST_JOB=another"});
  EXPECT_EQ(job.wait(worker, 30), 1);
  const auto said = [&](bool by_scheduler, const std::string& words) {
    std::istringstream lines(job.output());
    for (std::string line; std::getline(lines, line);) {
      if (has(line, "scheduler: refused the connection of") == by_scheduler && has(line, words)) {
        return true;
      }
    }
    return false;
  };
  EXPECT_TRUE(until([&] { return said(true, scheduler_says); })) << job.output();
  EXPECT_TRUE(until([&] { return said(false, worker_says); })) << job.output();
}

TEST(Links, AWorkerInTheClearIsNamedOnBothSides) {
  expect_both_say(true, "it speaks no TLS", "it speaks TLS, and this process does not");
}

TEST(Links, ASchedulerInTheClearIsNamedOnBothSides) {
  expect_both_say(false, "it speaks TLS, and this process does not",
                  "it speaks no TLS, and this process does");
}

// A job by hand of one scheduler and one worker, each with its own certificate.
struct TlsByHand {
  Job job;
  Papers papers;
  std::string token = job.folder + "/token";

  explicit TlsByHand(const std::string& name) : job(name) {
    EXPECT_TRUE(os::write_file_atomically(token, "0123456789abcdef"));
    job.environment.push_back("HOLDFAST_TOKEN_FILE=" + token);
    job.environment.push_back("MS_ENABLE_RECOVERY=1");
    job.environment.push_back("MS_WORKER_NUM=1");
    job.environment.push_back(cat("MS_SCHED_PORT=", job.port));
    put_under_tls(job, papers);
  }
  // `wrong`: a variable with a value that is wrong for this role.
  std::size_t start(const std::string& role, const std::string& wrong = "HOLDFAST_RUN=") {
    return job.start(toy_command(job, 10), {"MS_ROLE=" + role, wrong});
  }
  // Whether a line of the scheduler (or of the worker) has these words.
  [[nodiscard]] bool is_said(bool by_scheduler, const std::string& words) const {
    std::istringstream lines(job.output());
    for (std::string line; std::getline(lines, line);) {
      if (has(line, "scheduler: ") == by_scheduler && has(line, words)) return true;
    }
    return false;
  }
};

// A role finds errors in its own certificate or configuration before it connects. Both print them.
TEST(Links, WhatIsWrongWithItsOwnTlsIsNamedOnBothSides) {
  for (const bool of_scheduler : {false, true}) {
    TlsByHand all(of_scheduler ? "own-tls-sched" : "own-tls-worker");
    const std::string config = all.papers.path("missing.json");
    ASSERT_TRUE(os::write_file_atomically(
        config, R"({"server_cert_path": "absent.p12", "client_cert_path": "absent.p12",
                    "ca_cert_path": "ca.crt"})"));
    const std::string wrong_password =
        of_scheduler ? "HOLDFAST_TLS_SERVER_PASSWORD=wrong" : "HOLDFAST_TLS_CLIENT_PASSWORD=wrong";
    const std::vector<std::pair<std::string, std::string>> mistakes = {
        {wrong_password, of_scheduler ? "server.p12" : "client.p12"},
        {"HOLDFAST_TLS_CONFIG=" + config, "absent.p12"},
        {"HOLDFAST_TLS_CONFIG=/nowhere/config.json", "/nowhere/config.json"}};
    for (const auto& mistake : mistakes) {
      const std::string& wrong = mistake.first;
      const std::string& words = mistake.second;
      const auto scheduler = all.start("MS_SCHED", of_scheduler ? wrong : "HOLDFAST_RUN=");
      const auto worker = all.start("MS_WORKER", of_scheduler ? "HOLDFAST_RUN=" : wrong);
      EXPECT_TRUE(until([&] { return all.is_said(true, words); })) << all.job.output();
      EXPECT_TRUE(until([&] { return all.is_said(false, words); })) << all.job.output();
      for (const std::size_t process : {worker, scheduler}) {
        ::kill(all.job.pid(process), SIGKILL);
        (void)all.job.wait(process, 30);
      }
    }
  }
}

// A process whose certificate file is damaged goes on trying until the file is whole again.
TEST(Links, AJobGoesOnOnceItsCertificatesAreRenewed) {
  TlsByHand all("renewed-tls");
  const auto right = *os::read_file(all.papers.path("client.p12"));
  all.papers.write("client.p12", "half a certificate");
  const auto scheduler = all.start("MS_SCHED");
  const auto worker = all.start("MS_WORKER");
  EXPECT_TRUE(until([&] { return all.is_said(true, "it can not begin TLS"); })) << all.job.output();
  all.papers.write("client.p12", right);
  EXPECT_EQ(all.job.wait(worker, 30), 0) << all.job.output();
  EXPECT_EQ(all.job.wait(scheduler, 30), 0) << all.job.output();
}

TEST(Links, ASuccessorWaitsForItsCertificateAndSaysSo) {
  Job job("renewed-badly");
  Papers papers;
  put_under_tls(job, papers);
  job.launch(toy(job, 400, {"--join", "True", "--worker_num", "2"}));
  ASSERT_TRUE(until([&] { return has(job.log("scheduler.log"), "workers are here"); }))
      << job.output();
  const auto right = *os::read_file(papers.path("server.p12"));
  papers.write("server.p12", "half a certificate");
  ASSERT_TRUE(job.kill("MS_ROLE=MS_SCHED"));
  EXPECT_TRUE(until([&] { return has(job.log("scheduler.log"), "can not serve job"); }))
      << job.log("scheduler.log");
  EXPECT_TRUE(has(job.log("scheduler.log"), "server.p12")) << job.log("scheduler.log");
  papers.write("server.p12", right);
  EXPECT_EQ(job.wait(), 0) << job.output() << job.log("scheduler.log");
  EXPECT_EQ(count(job.log("scheduler.log"), "serves again"), 1U);
}

TEST(Links, ASuccessorWaitsForItsPortAndSaysSo) {
  TlsByHand all("port-gone");
  os::Fd other = os::listening_at(all.job.port, 1);
  const auto scheduler = all.start("MS_SCHED");
  const auto worker = all.start("MS_WORKER");
  EXPECT_TRUE(until([&] { return all.is_said(true, "another process has this port"); }))
      << all.job.output();
  other.reset();
  EXPECT_EQ(all.job.wait(worker, 30), 0) << all.job.output();
  EXPECT_EQ(all.job.wait(scheduler, 30), 0) << all.job.output();
}

// Silent connections, random bytes, and handshakes without a token, by the thousand.
TEST(Links, StrangersCostAJobLittle) {
  Job job("strangers");
  job.launch(toy(job, 100'000'000, {"--join", "True", "--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(1)) << job.output();
  const pid_t scheduler = job.processes("MS_ROLE=MS_SCHED").front();
  const double before = resident(scheduler);
  std::vector<os::Fd> silent;
  for (int i = 0; i < 900; ++i) silent.push_back(os::connected_to(job.port));
  EXPECT_TRUE(std::all_of(silent.begin(), silent.end(), [](const os::Fd& fd) { return bool(fd); }));
  Prng random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = i % 2 == 0 ? "HFL2" : "";
    while (bytes.size() < 200) bytes += static_cast<char>(random.below(256));
    const os::Fd raw = os::connected_to(job.port);
    if (raw) (void)::send(raw.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  const double version = job.status("version");
  EXPECT_GT(version, 0) << "the status is for who belongs to the job, at once";
  EXPECT_TRUE(job.reaches(version + 1)) << "and it trains";
  EXPECT_LE(resident(scheduler) - before, 64);
  // A worker dies, and its successor gets in although the strangers' connections are open.
  ASSERT_TRUE(job.kill("MS_ROLE=MS_WORKER"));
  EXPECT_TRUE(until([&] { return job.status("recoveries") >= 1; }, 30)) << job.output();
  const auto said = count(job.log("scheduler.log"), "refused the connection");
  EXPECT_TRUE(said >= 1 && said <= 9) << "each reason once\n" << job.log("scheduler.log");
}

TEST(Links, TheDoorIsAsTheSettingsSay) {
  Job job("door");
  job.environment.push_back("HOLDFAST_DOOR_CONNECTIONS=1");
  job.environment.push_back("HOLDFAST_DOOR_SECONDS=3600");
  job.launch(toy(job, 100'000'000, {"--join", "True", "--worker_num", "1"}));
  ASSERT_TRUE(job.reaches(1)) << job.output();
  const os::Fd first = os::connected_to(job.port);
  const os::Fd second = os::connected_to(job.port);
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(until([&] { return has(job.log("scheduler.log"), "and others came"); }, 30))
      << job.log("scheduler.log");
  EXPECT_FALSE(has(job.log("scheduler.log"), "in time"));
  char byte = 0;
  EXPECT_EQ(::recv(first.get(), &byte, 1, 0), 0);
}

}  // namespace
}  // namespace holdfast::apps
