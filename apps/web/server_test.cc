// Who may look at the page, and what a client may take.
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
#include <string>

#include "apps/testing/job.h"
#include "apps/web/bounded_stream.h"
#include "apps/web/server.h"
#include "apps/web/testing.h"
#include "os/testing.h"

namespace holdfast::apps::web {
namespace {

const std::string kToken = "0123456789abcdef0123456789abcdef";

class ServerTest : public testing::Test {
 protected:
  ServerTest() : watch_([] { return Answer{status_for_test(100).dump(), {}}; }) {
    watch_.wait();
    auto made = Server::listen(watch_, "127.0.0.1", 0, "digits", kToken);
    if (!made) ADD_FAILURE() << made.error().what;
    server_ = *std::move(made);
  }

  [[nodiscard]] httplib::Result get(const std::string& path,
                                    const httplib::Headers& headers = {}) const {
    httplib::Client client("127.0.0.1", server_->port());
    client.set_read_timeout(60);
    return client.Get(path, headers);
  }

  // What the server says to these bytes, until it closes the connection.
  [[nodiscard]] std::string answer_to(const std::string& bytes) const {
    const os::Fd socket = os::connected_to(server_->port());
    for (std::size_t sent = 0; sent < bytes.size();) {
      const auto more =
          ::send(socket.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (more <= 0) break;
      sent += static_cast<std::size_t>(more);
    }
    std::string said;
    char buffer[4096];
    for (ssize_t got = 1; got > 0;) {
      got = ::recv(socket.get(), buffer, sizeof buffer, 0);
      if (got > 0) said.append(buffer, static_cast<std::size_t>(got));
    }
    return said;
  }

  Watch watch_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, TellsNothingWithoutTheToken) {
  std::string other = kToken;
  other.back() = '0';
  const std::vector<httplib::Headers> wrong = {{},
                                               {{"Authorization", "Bearer " + other}},
                                               {{"Authorization", kToken}},
                                               {{"Authorization", "Bearer "}},
                                               {{"Cookie", "holdfast_digits=" + other}},
                                               {{"Cookie", "holdfast_other=" + kToken}}};
  for (const char* path : {"/", "/live", "/status.json", "/metrics", "/page.js", "/page.css", "/no",
                           "/?token=", "/?token=0123456789abcdef"}) {
    for (const auto& headers : wrong) {
      const auto answer = get(path, headers);
      ASSERT_TRUE(answer) << path;
      EXPECT_EQ(answer->status, 401) << path;
      EXPECT_FALSE(has(answer->body, "digits") || has(answer->body, "host1")) << answer->body;
      EXPECT_FALSE(answer->has_header("Set-Cookie"));
    }
  }
  EXPECT_EQ(get("/healthz")->body, "ok\n");
}

TEST_F(ServerTest, TellsAllWithTheToken) {
  const httplib::Headers bearer = {{"Authorization", "Bearer " + kToken}};
  EXPECT_TRUE(has(get("/", bearer)->body, "<h1>digits</h1>"));
  EXPECT_TRUE(has(get("/live", bearer)->body, "<h1>digits</h1>"));
  EXPECT_TRUE(has(get("/metrics?token=" + kToken)->body, "holdfast_step 100\n"));
  EXPECT_EQ(Json::parse(get("/status.json", bearer)->body)["version"], 100);
  EXPECT_TRUE(has(get("/page.js", bearer)->body, "fetch("));
  EXPECT_TRUE(has(get("/page.css", bearer)->body, "prefers-color-scheme"));
  EXPECT_EQ(get("/no", bearer)->status, 404);
  httplib::Client client("127.0.0.1", server_->port());
  EXPECT_EQ(client.Post("/", bearer, "", "text/plain")->status, 404);
}

TEST_F(ServerTest, LeavesACookieThatScriptsDoNotSee) {
  const auto answer = get("/?token=" + kToken);
  const auto cookie = answer->get_header_value("Set-Cookie");
  EXPECT_EQ(cookie, "holdfast_digits=" + kToken + "; Path=/; HttpOnly; SameSite=Strict");
  EXPECT_FALSE(has(answer->body, kToken));
  EXPECT_TRUE(has(answer->body, "url=./"));
  const auto page = get("/", {{"Cookie", "a=b; holdfast_digits=" + kToken + "; c=d"}});
  EXPECT_EQ(page->status, 200);
  EXPECT_FALSE(has(page->body, kToken));
  const auto policy = page->get_header_value("Content-Security-Policy");
  EXPECT_TRUE(has(policy, "default-src 'none'") && !has(policy, "unsafe")) << policy;
  EXPECT_EQ(page->get_header_value("Referrer-Policy"), "no-referrer");
}

TEST_F(ServerTest, TakesNoLongRequest) {
  const std::string line = "GET /healthz HTTP/1.1\r\n";
  EXPECT_TRUE(has(answer_to(line + "A: b\r\n\r\n"), "ok\n"));
  std::string many;
  while (many.size() < 4 * BoundedStream::kMostBytes) many += "A: b\r\n";
  for (const auto& request :
       {line + many + "\r\n", line + "A: " + many, "GET /" + std::string(50'000, 'a'),
        "POST /healthz HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + std::string(100'000, 'a'),
        "POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffff\r\n" +
            std::string(100'000, 'a')}) {
    EXPECT_FALSE(has(answer_to(request), "200 OK")) << request.substr(0, 60);
  }
  EXPECT_EQ(get("/healthz")->body, "ok\n");
}

TEST_F(ServerTest, MakesNoLongAnswerOfManyRanges) {
  std::string ranges = "bytes=0-1";
  while (ranges.size() < BoundedStream::kMostBytes - 200) ranges += ",0-1";
  const auto answer = answer_to("GET /healthz HTTP/1.1\r\nRange: " + ranges + "\r\n\r\n");
  EXPECT_TRUE(answer.ends_with("\r\n\r\nok\n")) << answer.substr(0, 500);
}

TEST_F(ServerTest, OutlivesNonsense) {
  std::string bytes(2000, '\0');
  for (int seed = 0; seed < 200; ++seed) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>((i * 7919 + static_cast<std::size_t>(seed) * 104'729) % 251);
    }
    (void)answer_to((seed % 2 == 0 ? "GET /?" : "") +
                    bytes.substr(0, static_cast<std::size_t>(seed) * 10) + " HTTP/1.1\r\n\r\n");
  }
  EXPECT_EQ(get("/healthz")->body, "ok\n");
}

// More clients that say nothing than there are threads: each is cut off, and then others are
// served.
TEST_F(ServerTest, IsNotHeldUpByClientsThatSayNothing) {
  std::vector<os::Fd> silent;
  for (std::size_t i = 0; i < Server::kThreads + 2; ++i)
    silent.push_back(os::connected_to(server_->port()));
  EXPECT_EQ(get("/healthz")->body, "ok\n");
  char letter = 0;
  EXPECT_EQ(::recv(silent.front().get(), &letter, 1, 0) > 0, false);
}

TEST_F(ServerTest, NamesAnAddressThatItCanNotHave) {
  const auto again = Server::listen(watch_, "127.0.0.1", server_->port(), "digits", kToken);
  ASSERT_FALSE(again);
  EXPECT_TRUE(has(again.error().what, "Address already in use")) << again.error().what;
  const auto nowhere = Server::listen(watch_, "192.0.2.1", 1, "digits", kToken);
  ASSERT_FALSE(nowhere);
  EXPECT_TRUE(has(nowhere.error().what, "can not listen at 192.0.2.1:1: ")) << nowhere.error().what;
}

TEST(Watches, AskOnceForAllWhoLook) {
  std::promise<void> over;
  const auto is_over = over.get_future().share();
  std::atomic<int> asked = 0;
  Watch watch([&] {
    if (++asked > 1) is_over.wait();  // So there is no second answer.
    return Answer{status_for_test(100).dump(), {}};
  });
  watch.wait();
  int made = 0;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(watch.text("a",
                         [&](const Record& record, Seconds) {
                           ++made;
                           return text_of(record.status(), "job");
                         }),
              "digits");
  }
  EXPECT_EQ(made, 1);
  EXPECT_LE(asked, 2);
  over.set_value();
}

TEST(Watches, TellThatThereIsNoSchedulerAndThatItIsBack) {
  std::atomic<int> phase = 0;
  Watch watch([&]() -> Answer {
    if (phase == 1) return {std::nullopt, "it does not run at the moment"};
    if (phase == 2) return {"[no JSON", {}};
    return {status_for_test(100 + phase).dump(), {}};
  });
  const auto becomes = [&](const std::string& text) {
    return until([&] {
      return text == watch.text("why", [](const Record& record, Seconds) {
        return cat(record.why_not(), '|', text_of(record.status(), "version"));
      });
    });
  };
  EXPECT_TRUE(becomes("|100.0"));
  phase = 1;
  EXPECT_TRUE(becomes("it does not run at the moment|100.0"));
  phase = 2;
  EXPECT_TRUE(becomes("the scheduler's answer is no JSON|100.0"));
  phase = 3;
  EXPECT_TRUE(becomes("|103.0"));
}

}  // namespace
}  // namespace holdfast::apps::web
