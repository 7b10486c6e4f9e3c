// `holdfast serve` beside a real job: while it trains, after a recovery, without a scheduler, after
// its end.
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>

#include <algorithm>
#include <regex>
#include <string>

#include "apps/json.h"
#include "apps/testing/job.h"
#include "base/text.h"
#include "os/files.h"

namespace holdfast::apps {
namespace {

// What the command that started last has printed: the port and the token of its page.
struct Address {
  int port = 0;
  std::string token;
};

Address address_in(const std::string& all) {
  const std::string output = all.substr(std::min(all.rfind("http://"), all.size()));
  std::smatch parts;
  static const std::regex kAddress(R"(http://127\.0\.0\.1:(\d+)/\?token=([0-9a-f]{32})\n)");
  if (!std::regex_search(output, parts, kAddress)) return {};
  return {std::stoi(parts[1]), parts[2]};
}

class Serve : public testing::Test {
 protected:
  // Starts the command with these arguments, and waits until it serves.
  std::size_t serve(const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {HOLDFAST, "serve", "--listen", "127.0.0.1:0"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const auto process = job_.start(argv, {});
    const int before = at_.port;
    EXPECT_TRUE(until([&] {
      at_ = address_in(job_.output());
      return at_.port != 0 && at_.port != before;
    })) << job_.output();
    return process;
  }

  [[nodiscard]] std::string get(const std::string& path) const {
    httplib::Client client("127.0.0.1", at_.port);
    client.set_bearer_token_auth(at_.token);
    const auto answer = client.Get(path);
    return answer ? answer->body : "";
  }

  [[nodiscard]] bool metric_becomes(const std::string& line) const {
    return until([&] { return has(get("/metrics"), cat('\n', line, '\n')); });
  }

  Job job_{"serve"};
  Address at_;
};

TEST_F(Serve, TellsOfAJobFromItsTrainingToItsEnd) {
  job_.launch(toy(job_, 1'000'000, {"--worker_num", "2"}));
  ASSERT_TRUE(job_.reaches(5)) << job_.output();
  const auto served = serve({"--job", job_.name});
  EXPECT_TRUE(metric_becomes("holdfast_up 1"));
  EXPECT_TRUE(metric_becomes("holdfast_ranks{state=\"training\"} 2")) << get("/metrics");
  EXPECT_TRUE(has(get("/"), "<strong>Training</strong>"));
  EXPECT_TRUE(has(get("/"), "<h1>" + job_.name + "</h1>"));

  EXPECT_TRUE(job_.kill("MS_NODE_ID=1"));
  EXPECT_TRUE(metric_becomes("holdfast_recoveries_total 1")) << get("/metrics");
  EXPECT_TRUE(metric_becomes("holdfast_recoveries_by_cause_total{cause=\"killed\"} 1"))
      << get("/metrics") << get("/status.json");
  EXPECT_TRUE(metric_becomes("holdfast_recovery_phase_seconds_count{phase=\"first_step\"} 1"));
  EXPECT_TRUE(has(get("/"), "was killed with SIGKILL") || has(get("/"), "(SIGKILL)")) << get("/");

  // The token is the same for a process that starts later, and it is not the job's.
  const auto told = job_.start({HOLDFAST, "serve", "--job", job_.name, "--print-token"}, {});
  EXPECT_EQ(job_.wait(told, 60), 0);
  EXPECT_TRUE(job_.output().ends_with(at_.token + "\n")) << job_.output();
  const auto secret =
      os::read_file(cat("/dev/shm/holdfast-", ::geteuid(), '/', job_.name, "/token"));
  ASSERT_TRUE(secret);
  EXPECT_FALSE(has(*secret, at_.token));

  // A scheduler that is started again is found, wherever the former one has left the page.
  EXPECT_TRUE(job_.kill("MS_ROLE=MS_SCHED"));
  const auto version = number_of(Json::parse(get("/status.json")), "version").value_or(0);
  EXPECT_TRUE(until([&] {
    return number_of(Json::parse(get("/status.json")), "version").value_or(0) > version + 10;
  }));

  job_.signal(0, SIGTERM);
  EXPECT_EQ(job_.wait(), 128 + SIGTERM);
  EXPECT_TRUE(metric_becomes("holdfast_recoveries_total 1"));
  EXPECT_TRUE(until([&] { return has(get("/"), "the job has ended"); })) << get("/");
  EXPECT_TRUE(has(get("/"), "<strong>Ended</strong>")) << get("/");
  EXPECT_TRUE(has(get("/metrics"), "holdfast_up 0\n"));
  job_.signal(served, SIGTERM);
  EXPECT_EQ(job_.wait(served, 60), 128 + SIGTERM);

  // What the job has left can be looked at, too.
  serve({"--status", job_.logs + "/last_status.json"});
  EXPECT_TRUE(has(get("/"), "<strong>Ended</strong>")) << get("/");
}

TEST_F(Serve, SaysWhyItDoesNot) {
  const auto says = [&](const std::vector<std::string>& arguments, int code,
                        const std::string& words) {
    std::vector<std::string> argv = {HOLDFAST, "serve"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    EXPECT_EQ(job_.wait(job_.start(argv, {}), 60), code) << words;
    EXPECT_TRUE(has(job_.output(), words)) << job_.output();
  };
  says({"--job", job_.name}, 1, "no job named '" + job_.name + "' is on this host");
  const std::string file = job_.folder + "/status";
  ASSERT_TRUE(os::write_file_atomically(file, "[]"));
  says({"--status", file}, 1, "is no status: give a last_status.json");
  says({"--status", file + "x"}, 1, "statusx");
  ASSERT_TRUE(os::write_file_atomically(file, "{}"));
  for (const char* wrong : {"9400", "127.0.0.1:", ":0", "127.0.0.1:70000", ""}) {
    says({"--status", file, "--listen", wrong}, 2,
         cat("--listen is '", wrong, "': it has to be HOST:PORT"));
  }
  says({"--status", file, "--listen", "192.0.2.1:1"}, 1, "can not listen at 192.0.2.1:1: ");
}

}  // namespace
}  // namespace holdfast::apps
