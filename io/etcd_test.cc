#include "io/etcd.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>

#include "base/rounds_for_test.h"
#include "io/etcd_journal.h"
#include "io/etcd_lease.h"
#include "io/etcd_testing.h"
#include "io/journal_testing.h"
#include "io/journal_writer.h"
#include "io/testing.h"
#include "os/files.h"
#include "tls/authority.h"
#include "tls/testing/papers.h"

namespace holdfast::io {
namespace {

using namespace std::chrono_literals;
using Kind = EtcdOperation::Kind;

Instant within(Duration time) {
  return Loop::now() + time;
}

// All tests but those that kill members share one: each has a job of its own.
class WithEtcd : public testing::Test {
 public:
  static void SetUpTestSuite() {
    ASSERT_TRUE(has_etcd()) << "tools/install --test installs etcd-server";
    servers = new EtcdServers;
    ASSERT_TRUE(servers->wait());
  }
  static void TearDownTestSuite() {
    delete servers;
    servers = nullptr;
  }

 protected:
  WithEtcd() : job(testing::UnitTest::GetInstance()->current_test_info()->name()) {}

  static Etcd open() { return *Etcd::open(servers->options()); }

  // Makes the scheduler's key; returns the revision that made it.
  [[nodiscard]] std::int64_t lead(std::int64_t lease = 0) const {
    auto etcd = open();
    const auto key = etcd_scheduler(job);
    const auto made =
        etcd.transact({{{key, 0}}, {{Kind::kPut, key, "", "somebody", lease}}}, within(5s));
    EXPECT_TRUE(made && made->done);
    return made->revision;
  }
  [[nodiscard]] std::unique_ptr<Journal> journal(std::int64_t created) const {
    return make_etcd_journal(open(), job, created);
  }
  void put(const std::string& key, const std::string& value) const {
    ASSERT_TRUE(open().transact({{}, {{Kind::kPut, key, "", value}}}, within(5s))->done);
  }
  [[nodiscard]] EtcdRange all() const {
    const auto prefix = etcd_prefix(job);
    auto answer = open().transact({{}, {{Kind::kRange, prefix, end_of(prefix)}}}, within(5s));
    return answer->ranges.at(0);
  }

  static EtcdServers* servers;
  const std::string job;
};
EtcdServers* WithEtcd::servers = nullptr;

wire::Formation of(const std::string& job, Generation generation, std::size_t ranks,
                   const std::string& mark = "node") {
  wire::Formation made{.job = job, .run_id = 7, .generation = generation};
  for (std::size_t i = 0; i < ranks; ++i) {
    made.roster.push_back({.node_id = cat(mark, i),
                           .incarnation = generation,
                           .host = std::string(60, 'h'),
                           .endpoint = "10.10.10.10:12345"});
  }
  return made;
}

std::map<std::string, wire::KeyValue> by_key(const wire::Memory& memory) {
  std::map<std::string, wire::KeyValue> all;
  for (const auto& pair : memory.kept) all[pair.key] = pair;
  return all;
}

TEST_F(WithEtcd, KeysOfAnyBytesComeBack) {
  auto etcd = open();
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  for (std::size_t size = 0; size < 5; ++size) {
    const std::string key = cat("bytes/", bytes.substr(0, size), '/');
    const std::string value = bytes.substr(bytes.size() - size);
    const auto put = etcd.transact({{{key, 0}}, {{Kind::kPut, key, "", value}}}, within(5s));
    ASSERT_TRUE(put && put->done) << put.error().what;
    const auto again = etcd.transact({{{key, 0}}, {{Kind::kPut, key, "", "x"}}}, within(5s));
    ASSERT_TRUE(again && !again->done);
    const auto got = etcd.transact({{{key, put->revision}}, {{Kind::kRange, key}}}, within(5s));
    ASSERT_TRUE(got && got->done);
    ASSERT_EQ(got->ranges.at(0).entries.size(), 1U);
    EXPECT_EQ(got->ranges[0].entries[0].value, value);
    EXPECT_EQ(got->ranges[0].entries[0].created, put->revision);
  }
}

// The member of etcd that was asked first may carry out a store after the next store.
TEST_F(WithEtcd, ACopyOfAStoreThatComesLateChangesNothing) {
  const auto created = lead();
  const auto kept = journal(created);
  ASSERT_FALSE(kept->load()->formation);
  ASSERT_TRUE(kept->begin(of(job, 1, 2)));
  const auto at_its_turn = [&] {
    const auto entries = all().entries;
    const auto turn = std::find_if(entries.begin(), entries.end(), [&](const EtcdEntry& entry) {
      return entry.key == etcd_prefix(job) + "journal/turn";
    });
    EXPECT_NE(turn, entries.end());
    return EtcdCondition{.key = turn->key, .changed = turn->changed};
  };
  const auto before = at_its_turn();
  ASSERT_TRUE(kept->store({.formation = of(job, 2, 0)}));
  EXPECT_NE(at_its_turn().changed, before.changed);
  const auto late = open().transact(
      {{{etcd_scheduler(job), created}, before}, {{Kind::kPut, etcd_head(job), "", "old"}}},
      within(5s));
  ASSERT_TRUE(late);
  EXPECT_FALSE(late->done);
  EXPECT_EQ(kept->load()->formation->generation, 2U);
  // The next store has its turn.
  ASSERT_TRUE(kept->store({.formation = of(job, 3, 0)}));
  EXPECT_EQ(journal(created)->load()->formation->generation, 3U);
}

TEST_F(WithEtcd, AJournalIsTakenBackByASuccessor) {
  const auto created = lead();
  const std::string big(5U << 20U, 'b');
  {
    const auto first = journal(created);
    ASSERT_FALSE(first->load()->formation);
    ASSERT_TRUE(first->begin(of(job, 1, 0)));
    ASSERT_TRUE(first->store({.formation = of(job, 2, 3)}));
    ASSERT_TRUE(first->store({.formation = of(job, 3, 0),
                              .seats = {{1, {.node_id = "B"}}},
                              .kept = {{"a", "1"}, {"", ""}, {"big", big, 4}}}));
    ASSERT_TRUE(
        first->store({.kept = {{"a", "2", 2}}, .writers = {{~std::uint64_t{0}, 1, 2}, {5, 1, 2}}}));
    ASSERT_TRUE(first->store({.writers = {{5, 2, 3}}}));
    ASSERT_TRUE(first->store({.remarks = {{1, {7, {}}}}}));
    ASSERT_TRUE(first->store({.remarks = {{2, {8, {}}}, {3, {9, {}}}}}));
  }
  const auto second = journal(created);
  const auto memory = second->load();
  ASSERT_TRUE(memory) << memory.error().what;
  auto expected = of(job, 2, 3);
  expected.generation = 3;
  expected.roster[1] = {.node_id = "B"};
  EXPECT_EQ(*memory->formation, expected);
  EXPECT_EQ(by_key(*memory), (std::map<std::string, wire::KeyValue>{
                                 {"", {"", ""}}, {"a", {"a", "2", 2}}, {"big", {"big", big, 4}}}));
  EXPECT_EQ(memory->writers, (std::vector<wire::Writer>{{5, 2, 3}, {~std::uint64_t{0}, 1, 2}}));
  EXPECT_EQ(memory->remarks, (std::vector<wire::Remarked>{{7, {}}, {8, {}}, {9, {}}}));
  // The parts of a value go with it, and another run begins without anything.
  ASSERT_TRUE(second->store({.kept = {{"big", "small", 5}}}));
  EXPECT_EQ(by_key(*second->load())["big"].value, "small");
  for (const auto& entry : all().entries) EXPECT_EQ(entry.key.find("parts/"), std::string::npos);
  ASSERT_TRUE(second->begin(of(job, 4, 2)));
  EXPECT_EQ(*second->load()->formation, of(job, 4, 2));
  EXPECT_TRUE(second->load()->kept.empty() && second->load()->writers.empty());
  EXPECT_TRUE(second->load()->remarks.empty());
  ASSERT_TRUE(second->remove());
  EXPECT_EQ(all().entries.size(), 1U) << "the scheduler's own";
}

TEST_F(WithEtcd, ARosterOfThousandsIsChangedAsOne) {
  const auto created = lead();
  const auto kept = journal(created);
  const auto large = of(job, 1, 10'000);
  ASSERT_TRUE(kept->store({.formation = large})) << "it takes more than one transaction";
  EXPECT_EQ(*kept->load()->formation, large);
  ASSERT_TRUE(kept->store({.formation = of(job, 2, 0), .seats = {{9'999, {.node_id = "last"}}}}));
  wire::Changes every{.formation = of(job, 3, 0)};
  for (Rank rank = 0; rank < 10'000; ++rank) every.seats[rank] = {.node_id = cat("new", rank)};
  ASSERT_TRUE(kept->store(every));
  const auto memory = journal(created)->load();
  ASSERT_TRUE(memory) << memory.error().what;
  EXPECT_EQ(memory->formation->generation, 3U);
  ASSERT_EQ(memory->formation->roster.size(), 10'000U);
  for (std::size_t i = 0; i < 10'000; ++i)
    EXPECT_EQ(memory->formation->roster[i].node_id, cat("new", i));
  EXPECT_LT(all().entries.size(), 110U) << "what was replaced is gone";
}

TEST_F(WithEtcd, WhatIsHalfWrittenIsNotInForce) {
  auto created = lead();
  auto kept = journal(created);
  ASSERT_TRUE(kept->store({.formation = of(job, 1, 10'000)}));
  // As if the scheduler had ended in the midst of writing the next roster.
  const auto stranger = cat(etcd_prefix(job), "journal/seats/0000000000000002/0000000000000000");
  put(stranger, "half");
  auto after = journal(created);
  EXPECT_EQ(*after->load()->formation, of(job, 1, 10'000));
  ASSERT_TRUE(after->store({.formation = of(job, 2, 10'000, "other")}));
  EXPECT_EQ(*after->load()->formation, of(job, 2, 10'000, "other"));
}

TEST_F(WithEtcd, WhatIsTooLargeIsRefusedAndChangesNothing) {
  const auto kept = journal(lead());
  ASSERT_TRUE(kept->store({.formation = of(job, 1, 2)}));
  wire::Changes many{.formation = of(job, 2, 0)};
  for (int i = 0; i < 200; ++i) many.kept.push_back({cat("key", i), "value"});
  const auto refused = kept->store(many);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("too large for etcd"), std::string::npos)
      << refused.error().what;
  EXPECT_EQ(*kept->load()->formation, of(job, 1, 2));
  ASSERT_TRUE(kept->store({.formation = of(job, 3, 2)}));
  EXPECT_EQ(*kept->load()->formation, of(job, 3, 2));
}

// One transaction takes as many stores as fit, however large they are.
TEST_F(WithEtcd, WhatQueuesIsWrittenInFewTransactions) {
  const auto created = lead();
  const auto hand = std::make_shared<HeldJournal::Hand>();
  Loop loop;
  std::size_t durable = 0;
  std::map<std::string, std::string> expected;
  std::vector<wire::Changes> all;
  all.push_back({.formation = of(job, 1, 1000)});
  for (std::uint64_t i = 1; i <= 200; ++i) {
    const std::size_t size = i % 40 == 0 ? 300'000 : i % 20 == 0 ? 250'000 : 10;
    const std::string value(size, static_cast<char>('a' + i % 26));
    all.push_back({.kept = {{cat("key", i % 150), value, i}}, .writers = {{i, i, i}}});
    expected[cat("key", i % 150)] = value;
  }
  wire::Formation head = of(job, 2, 0);
  all.push_back({.formation = head, .seats = {{7, {.node_id = "other"}}}});
  {
    JournalWriter writer(loop, std::make_unique<HeldJournal>(hand, journal(created)),
                         [&](const Result<std::size_t>& heard) {
                           EXPECT_TRUE(heard) << heard.error().what;
                           durable += heard ? *heard : all.size();
                           if (durable >= all.size()) loop.stop();
                         });
    for (const auto& each : all) writer.store(each);
    hand->let_go();
    run_to_stop(loop);
  }
  EXPECT_LT(hand->stored.size(), 20U);
  const auto memory = journal(created)->load();
  ASSERT_TRUE(memory) << memory.error().what;
  EXPECT_EQ(memory->formation->generation, 2U);
  EXPECT_EQ(memory->formation->roster.size(), 1000U);
  EXPECT_EQ(memory->formation->roster[7].node_id, "other");
  EXPECT_EQ(memory->writers.size(), 200U);
  std::map<std::string, std::string> kept;
  for (const auto& pair : memory->kept) kept[pair.key] = pair.value;
  EXPECT_EQ(kept, expected);
}

TEST(Etcd, ThatStandsStillHoldsUpNoLoop) {
  ASSERT_TRUE(has_etcd());
  EtcdServers servers;
  ASSERT_TRUE(servers.wait());
  auto etcd = *Etcd::open(servers.options());
  const auto made = etcd.transact({{}, {{Kind::kPut, etcd_scheduler("job")}}}, within(5s));
  ASSERT_TRUE(made);
  const auto hand = std::make_shared<HeldJournal::Hand>();
  Loop loop;
  std::vector<std::size_t> heard;
  JournalWriter writer(loop,
                       std::make_unique<HeldJournal>(
                           hand, make_etcd_journal(std::move(etcd), "job", made->revision)),
                       [&](const Result<std::size_t>& said) {
                         EXPECT_TRUE(said) << said.error().what;
                         heard.push_back(said ? *said : 0);
                         if (!said || heard.size() == 2) loop.stop();
                       });
  writer.store({.kept = {{"a", "1"}}});
  hand->until_held();
  for (int i = 0; i < 20; ++i) writer.store({.kept = {{"b", cat(i)}}});
  servers.kill(0, SIGSTOP);
  hand->let_go();
  loop.post([&] { loop.post([&] { servers.kill(0, SIGCONT); }); });
  run_to_stop(loop);
  EXPECT_EQ(heard, (std::vector<std::size_t>{1, 20}));
  ASSERT_EQ(hand->stored.size(), 2U);
  EXPECT_EQ(hand->stored[1].kept.at(0).value, "19");
}

TEST_F(WithEtcd, ASchedulerWhoseKeyIsGoneWritesNothing) {
  const auto created = lead();
  const auto former = journal(created);
  ASSERT_TRUE(former->store({.formation = of(job, 1, 10'000)}));
  const auto key = etcd_scheduler(job);
  ASSERT_TRUE(open().transact({{}, {{Kind::kDelete, key}}}, within(5s)));
  const auto newer = lead();
  const auto before = all();
  for (const auto& changes : {wire::Changes{.formation = of(job, 2, 10'000)},
                              wire::Changes{.kept = {{"a", std::string(3U << 20U, 'x')}}},
                              wire::Changes{.writers = {{1, 2, 3}}}}) {
    const auto refused = former->store(changes);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().what.find("lease has ended"), std::string::npos)
        << refused.error().what;
  }
  ASSERT_FALSE(former->begin(of(job, 5, 1)));
  ASSERT_FALSE(former->remove());
  const auto after = all();
  ASSERT_EQ(after.entries.size(), before.entries.size());
  for (std::size_t i = 0; i < after.entries.size(); ++i) {
    EXPECT_EQ(after.entries[i].key, before.entries[i].key);
    EXPECT_EQ(after.entries[i].value, before.entries[i].value);
  }
  ASSERT_TRUE(journal(newer)->load());
}

TEST_F(WithEtcd, TellsWhatIsDamaged) {
  const auto created = lead();
  const auto kept = journal(created);
  ASSERT_TRUE(kept->store({.formation = of(job, 1, 150),
                           .kept = {{"a", "1"}, {"b", "1"}, {"big", std::string(300'000, 'x')}},
                           .writers = {{1, 2, 3}}}));
  ASSERT_TRUE(kept->load());
  const auto whole = all();
  for (const auto& entry : whole.entries) {
    // The content of the turn is never read; it is only compared.
    if (entry.key == etcd_scheduler(job) || entry.key.ends_with("/turn")) continue;
    std::vector<std::string> damages{entry.value.substr(0, entry.value.size() - 1), "", "x",
                                     entry.value + "x", std::string(entry.value.size(), '\xff')};
    damages.resize(rounds(damages.size()));
    for (const auto& value : damages) {
      put(entry.key, value);
      const auto memory = kept->load();
      ASSERT_FALSE(memory) << entry.key;
      EXPECT_NE(memory.error().what.find("damaged"), std::string::npos) << memory.error().what;
    }
    // A valid value, but of another key.
    for (const auto& other : whole.entries) {
      if (other.key == entry.key || other.key == etcd_scheduler(job) ||
          other.value.size() > 100'000)
        continue;
      put(entry.key, other.value);
      ASSERT_FALSE(kept->load()) << entry.key << " is " << other.key;
    }
    ASSERT_TRUE(open().transact({{}, {{Kind::kDelete, entry.key}}}, within(5s)));
    if (entry.key.find("/seats/") != std::string::npos ||
        entry.key.find("/parts/") != std::string::npos) {
      EXPECT_FALSE(kept->load()) << entry.key;
    }
    put(entry.key, entry.value);
  }
  EXPECT_TRUE(kept->load());
}

TEST_F(WithEtcd, ALeaseLivesAsLongAsItsHolder) {
  std::atomic<int> lost = 0;
  auto lease = EtcdLease::take(servers->options(), 2s, [&](const std::string&) { ++lost; });
  ASSERT_TRUE(lease) << lease.error().what;
  (void)lead((*lease)->id());
  const Instant end = within(2700ms);  // Longer than the lease would live by itself.
  while (Loop::now() < end) {
    ASSERT_EQ(all().entries.size(), 1U);
    std::this_thread::sleep_for(50ms);
  }
  (*lease)->give_up();
  EXPECT_TRUE(all().entries.empty()) << "at once";
  EXPECT_EQ(lost, 0);
}

TEST_F(WithEtcd, WhoseLeaseEtcdHasEndedHearsIt) {
  std::atomic<int> lost = 0;
  auto lease = EtcdLease::take(servers->options(), 2s, [&](const std::string&) { ++lost; });
  ASSERT_TRUE(lease);
  ASSERT_TRUE(open().revoke((*lease)->id(), within(5s)));
  const Instant end = within(5s);
  while (lost == 0 && Loop::now() < end) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(lost, 1);
}

TEST_F(WithEtcd, RefusesWhatItCanNotUse) {
  for (const char* members :
       {"", "h1:2379", "ftp://h1:2379", "http://", "http://h1:0", "http://h1:x", "http://h1,",
        "http://h1,https://h2", "http://[::1", "http://[::1]2", "http://a@b", "http://h1:99999"}) {
    const auto etcd = Etcd::open({.members = members});
    ASSERT_FALSE(etcd) << members;
    EXPECT_EQ(etcd.error().blame, Blame::kUser);
    EXPECT_NE(etcd.error().what.find("HOLDFAST_ETCD"), std::string::npos);
  }
  EXPECT_TRUE(Etcd::open({.members = "https://h1,https://[::1]:2379/,https://h2:1"}));
  EXPECT_FALSE(Etcd::open({.members = "https://h1", .certificate = "/c"}));
  EXPECT_FALSE(Etcd::open({.members = "http://h1", .authority = "/c"}));
  EXPECT_FALSE(Etcd::open({.members = "https://h1", .authority = "/nowhere"}));
}

// A stranger that answers each connection with the same bytes.
class Stranger {
 public:
  explicit Stranger(std::string says) : says_(std::move(says)) {
    socket_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(socket_.get(), 8), 0);
    EXPECT_EQ(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
    port = ntohs(at.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Stranger() {
    ::shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::uint16_t port = 0;

 private:
  void run() {
    while (true) {
      const os::Fd one(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!one) return;
      char buffer[4096];
      (void)!::read(one.get(), buffer, sizeof(buffer));
      (void)!::send(one.get(), says_.data(), says_.size(), MSG_NOSIGNAL);
    }
  }
  std::string says_;
  os::Fd socket_;
  std::thread thread_;
};

TEST(Etcd, BelievesNoNonsense) {
  const auto with_body = [](const std::string& body) {
    return cat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  };
  const std::string header = R"("header":{"revision":"1"},)";
  std::vector<std::string> answers = {
      "",
      "x",
      "HTTP/1.1 200 OK\r\n\r\n",
      "HTTP/1.1 2",
      "HTTP/1.1 999999999999 \r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 900000000\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}xx0\r\n\r\n",
      "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}",
      std::string(200'000, 'h'),
      with_body(""),
      with_body("[]"),
      with_body("{"),
      with_body("{}"),
      with_body("null"),
      with_body(std::string(100'000, '[')),
      with_body(R"({"header":{"revision":"1"}})"),  // Not done, without conditions.
      with_body("{" + header + R"("succeeded":"yes"})"),
      with_body("{" + header + R"("succeeded":true})"),
      with_body("{" + header + R"("succeeded":true,"responses":7})"),
      with_body("{" + header + R"("succeeded":true,"responses":[7]})"),
      with_body("{" + header + R"("succeeded":true,"responses":[{"response_range":[]}]})"),
      with_body("{" + header + R"("succeeded":true,"responses":[{"response_range":{"kvs":{}}}]})"),
      with_body("{" + header + R"("succeeded":true,"responses":[{"response_range":{"kvs":[7]}}]})"),
      with_body("{" + header +
                R"("succeeded":true,"responses":[{"response_range":{"kvs":[{"key":"?"}]}}]})"),
      with_body("{" + header +
                R"("succeeded":true,"responses":[{"response_range":{"kvs":[{"lease":"x"}]}}]})")};
  for (const auto& answer : answers) {
    const Stranger stranger(answer);
    auto etcd = Etcd::open({.members = cat("http://127.0.0.1:", stranger.port)});
    ASSERT_TRUE(etcd);
    const EtcdTransaction ask{{}, {{Kind::kRange, "a"}}};
    const Instant until = within(100ms);
    EXPECT_FALSE(etcd->transact(ask, until)) << answer.substr(0, 200);
    EXPECT_LT(Loop::now(), until + 10s);
    EXPECT_FALSE(etcd->grant(2s, within(30ms)));
    EXPECT_FALSE(etcd->keep_alive(7, within(30ms)));
  }
}

TEST(Etcd, GoesOnWithTheMembersThatAreLeft) {
  ASSERT_TRUE(has_etcd());
  EtcdServers three(3);
  ASSERT_TRUE(three.wait());
  std::atomic<int> lost = 0;
  // A minute: the members choose another leader meanwhile, on a busy machine within seconds.
  auto lease = EtcdLease::take(three.options(), 60s, [&](const std::string&) { ++lost; });
  ASSERT_TRUE(lease);
  auto etcd = Etcd::open(three.options());
  const auto put = [&](const std::string& value) {
    const auto done =
        etcd->transact({{}, {{Kind::kPut, "k", "", value, (*lease)->id()}}}, within(30s));
    return done && done->done;
  };
  ASSERT_TRUE(put("1"));
  three.kill(0);
  ASSERT_TRUE(put("2")) << "with two of three";
  EXPECT_EQ(lost, 0);
  three.kill(1, SIGSTOP);  // This member accepts connections, and answers nothing.
  EXPECT_FALSE(etcd->transact({{}, {{Kind::kPut, "k", "", "3"}}}, within(1s)))
      << "with one of three";
  three.kill(1, SIGCONT);
  ASSERT_TRUE(put("4"));
}

// No attempt succeeds, and one of them fails with this word. The others may fail because a member
// is still starting, or slow.
void expect_refusal(const EtcdOptions& options, const std::string& word) {
  auto client = Etcd::open(options);
  ASSERT_TRUE(client) << client.error().what;
  std::string why;
  const Instant end = within(30s);
  while (why.find(word) == std::string::npos && Loop::now() < end) {
    const auto answer = client->transact({{}, {{Kind::kRange, "a"}}}, within(300ms));
    ASSERT_FALSE(answer);
    why = answer.error().what;
  }
  EXPECT_NE(why.find(word), std::string::npos) << why;
}

TEST(Etcd, MeetsItUnderMutualTls) {
  ASSERT_TRUE(has_etcd());
  const os::TemporaryFolder folder;
  const auto run = [&](const std::string& command) {
    return ::system(cat("cd ", folder.path(), " && ", command, " >/dev/null 2>&1").c_str());
  };
  ASSERT_EQ(run("umask 077; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 "
                "-nodes -keyout ca.key -out ca.pem "
                "-subj /CN=ca -days 2"),
            0);
  for (const std::string name : {"server", "client", "elsewhere"}) {
    const std::string address = name == "elsewhere" ? "10.9.9.9" : "127.0.0.1";
    ASSERT_EQ(run(cat("umask 077; openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 "
                      "-nodes -keyout ",
                      name, ".key -out ", name, ".csr -subj /CN=", name,
                      " && printf 'subjectAltName=IP:", address,
                      "' > ext && openssl x509 -req -in ", name,
                      ".csr -CA ca.pem -CAkey ca.key "
                      "-CAcreateserial -days 2 -extfile ext -out ",
                      name, ".pem")),
              0);
  }
  const EtcdServers server(
      1,
      {"--cert-file", folder / "server.pem", "--key-file", folder / "server.key",
       "--client-cert-auth", "--trusted-ca-file", folder / "ca.pem"},
      "https");
  auto options = server.options();
  options.authority = folder / "ca.pem";
  options.certificate = folder / "client.pem";
  options.key = folder / "client.key";
  ASSERT_TRUE(server.wait(options));
  auto nobody = options;
  nobody.certificate = nobody.key = "";
  expect_refusal(nobody, "certificate");
  auto trusting_others = options;
  trusting_others.authority = folder / "elsewhere.pem";
  expect_refusal(trusting_others, "certificate");
  // A server whose certificate is another host's.
  const EtcdServers other(
      1, {"--cert-file", folder / "elsewhere.pem", "--key-file", folder / "elsewhere.key"},
      "https");
  auto to_other = other.options();
  to_other.authority = folder / "ca.pem";
  expect_refusal(to_other, "certificate");
}

}  // namespace
}  // namespace holdfast::io
