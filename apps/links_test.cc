// Jobs whose connections are attacked, or under TLS.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "apps/testing/job.h"
#include "base/prng.h"
#include "base/text.h"
#include "os/fd.h"
#include "os/files.h"
#include "tls/testing/papers.h"

namespace holdfast::apps {
namespace {

using tls::Papers;

os::Fd connected(std::uint16_t port) {
  os::Fd raw(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(raw.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    raw.reset();
  }
  return raw;
}

// Megabytes that the process holds in memory.
double resident(pid_t pid) {
  const auto text = os::read_file(cat("/proc/", pid, "/statm"));
  if (!text) return 0;
  return std::strtod(text->c_str() + text->find(' '), nullptr) *
         static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

// What the ranks have at the end, bit for bit.
std::vector<std::string> results(const Job& job) {
  std::vector<std::string> all;
  for (const auto& name : os::names_in(job.folder + "/out")) {
    all.push_back(*os::read_file(cat(job.folder, "/out/", name)));
  }
  return all;
}

void put_under_tls(Job& job, const Papers& papers) {
  const std::string config = papers.path("config.json");
  ASSERT_TRUE(os::write_file_atomically(
      config, R"({"server_cert_path": "server.p12", "client_cert_path": "client.p12",
                  "ca_cert_path": "ca.crt", "crl_path": "crl.pem", "cipher_list": "",
                  "cert_expire_warning_time_in_day": 7})"));
  job.environment.push_back("HOLDFAST_TLS_CONFIG=" + config);
  job.environment.push_back(cat("HOLDFAST_TLS_SERVER_PASSWORD=", tls::kServerPassword));
  job.environment.push_back(cat("HOLDFAST_TLS_CLIENT_PASSWORD=", tls::kClientPassword));
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

// The scheduler leaves in the job's folder what who looks at the job needs.
TEST(Links, StatusNeedsNoSettingUnderTls) {
  Job job("tls-status");
  const Papers papers;
  const auto usual = job.environment;
  put_under_tls(job, papers);
  job.launch(toy(job, 100'000'000, {"--join", "True", "--worker_num", "1"}));
  ASSERT_TRUE(until([&] { return has(job.log("scheduler.log"), "workers are here"); }))
      << job.output();
  job.environment = usual;
  EXPECT_TRUE(until([&] { return job.status("version") > 0; })) << job.output();
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

// A worker in the clear, by hand, at a scheduler under TLS: both say so at once. Its job has
// another name; otherwise it would find in the job's folder what the scheduler has left of TLS.
TEST(Links, AWorkerInTheClearIsNamedOnBothSides) {
  Job job("plain-to-tls");
  const Papers papers;
  put_under_tls(job, papers);
  const std::vector<std::string> common = {"MS_WORKER_NUM=1", cat("MS_SCHED_PORT=", job.port)};
  auto environment = common;
  environment.push_back("MS_ROLE=MS_SCHED");
  (void)job.start(toy_command(job, 10), environment);
  ASSERT_TRUE(until([&] { return has(job.output(), "serves job"); })) << job.output();
  std::erase_if(job.environment,
                [](const auto& entry) { return entry.starts_with("HOLDFAST_TLS"); });
  const std::string token = job.folder + "/token";
  ASSERT_TRUE(os::write_file_atomically(token, "0123456789abcdef"));
  job.environment.push_back("HOLDFAST_TOKEN_FILE=" + token);
  environment = common;
  environment.insert(environment.end(), {"MS_ROLE=MS_WORKER", "HOLDFAST_SCHEDULER_TIMEOUT=1",
                                         "HOLDFAST_JOB=in-the-clear"});
  const auto worker = job.start(toy_command(job, 10), environment);
  EXPECT_EQ(job.wait(worker, 30), 1);
  EXPECT_TRUE(has(job.output(), "it speaks TLS, and this process does not")) << job.output();
  EXPECT_TRUE(has(job.output(), "it speaks no TLS")) << job.output();
}

// Silent connections, random bytes, and handshakes without a token, by the thousand.
TEST(Links, StrangersCostAJobLittle) {
  Job job("strangers");
  job.launch(toy(job, 100'000'000, {"--join", "True", "--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(1)) << job.output();
  const pid_t scheduler = job.processes("MS_ROLE=MS_SCHED").front();
  const double before = resident(scheduler);
  std::vector<os::Fd> silent;
  for (int i = 0; i < 900; ++i) silent.push_back(connected(job.port));
  EXPECT_TRUE(std::all_of(silent.begin(), silent.end(), [](const os::Fd& fd) { return bool(fd); }));
  Prng random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = i % 2 == 0 ? "HFL2" : "";
    while (bytes.size() < 200) bytes += static_cast<char>(random.below(256));
    const os::Fd raw = connected(job.port);
    if (raw) (void)::send(raw.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  const double version = job.status("version");
  EXPECT_GT(version, 0) << "the status is for who belongs to the job, at once";
  EXPECT_TRUE(job.reaches(version + 1)) << "and it trains";
  EXPECT_LE(resident(scheduler) - before, 64);
  // A worker dies and comes back, past those who stand at the door.
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
  const os::Fd first = connected(job.port);
  const os::Fd second = connected(job.port);
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(until([&] { return has(job.log("scheduler.log"), "and others came"); }, 30))
      << job.log("scheduler.log");
  EXPECT_FALSE(has(job.log("scheduler.log"), "in time"));
  char byte = 0;
  EXPECT_EQ(::recv(first.get(), &byte, 1, 0), 0);
}

}  // namespace
}  // namespace holdfast::apps
