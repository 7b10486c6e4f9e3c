// Groups over several hosts: they give the bits of one host, and end on all hosts.
#include "collective/span_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <latch>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/rounds_for_test.h"
#include "collective/current_generation.h"
#include "collective/operations.h"
#include "collective/span_job.h"
#include "collective/team.h"

namespace holdfast::collective {
namespace {

using Hosts = std::vector<int>;
using Bytes = std::vector<std::byte>;

const std::vector<Hosts>& layouts() {
#ifdef HOLDFAST_SANITIZED  // One layout of each kind.
  static const std::vector<Hosts> all = {{0, 0, 1, 1}, {0, 1, 2}, {0, 1, 0, 1}};
#else
  static const std::vector<Hosts> all = {
      {0, 1},       {0, 0, 1, 1},       {0, 0, 0, 1},    {0, 1, 2}, {0, 0, 1, 2, 2, 2},
      {0, 1, 0, 1}, {7, 3, 3, 7, 3, 7}, {0, 1, 2, 3, 4},
  };
#endif
  return all;
}

std::string name(const Hosts& hosts) {
  std::string text;
  for (const int host : hosts) append(text, cat(text.empty() ? "" : ",", host));
  return text;
}

Bytes bytes_of_rank(std::size_t size, int rank, std::uint64_t seed) {
  Bytes bytes(size);
  for (std::size_t at = 0; at < size; at += 8) {
    const std::uint64_t word = derive(seed, rank, at);
    std::memcpy(&bytes[at], &word, std::min<std::size_t>(8, size - at));
  }
  return bytes;
}

// Replaces every NaN by the one that the processor makes itself. Which of two different NaNs a sum
// keeps depends on the order of operands that the compiler chose.
template <class Float>
void keep_one_nan(Bytes& bytes) {
  const volatile Float infinity = std::numeric_limits<Float>::infinity();
  const Float nan = infinity - infinity;
  for (std::size_t at = 0; at + sizeof(Float) <= bytes.size(); at += sizeof(Float)) {
    Float x;
    std::memcpy(&x, &bytes[at], sizeof x);
    if (std::isnan(x)) std::memcpy(&bytes[at], &nan, sizeof nan);
  }
}

Bytes numbers_of_rank(Element element, std::size_t count, int rank, std::uint64_t seed) {
  Bytes bytes = bytes_of_rank(count * size_of(element), rank, seed);
  if (element == Element::kFloat32) keep_one_nan<float>(bytes);
  if (element == Element::kFloat64) keep_one_nan<double>(bytes);
  return bytes;
}

constexpr Op kOps[] = {Op::kSum, Op::kProduct, Op::kMin, Op::kMax,
                       Op::kAnd, Op::kOr,      Op::kXor, Op::kAverage};

// All elements and ops that go together.
std::vector<Reduction> all_reductions() {
  std::vector<Reduction> all;
  std::byte none{};
  for (int e = 0; e < static_cast<int>(Element::kBytes); ++e) {
    for (const Op op : kOps) {
      if (check(Numbers(&none, 0, Element(e)), op)) all.push_back({Element(e), op});
    }
  }
  return all;
}

void expect_same_sums(Group& span, Group& host, Reduction how, std::size_t count, bool in_place) {
  const Bytes from = numbers_of_rank(how.element, count, span.rank(), count);
  Bytes want = from;
  Bytes got = in_place ? from : Bytes(from.size());
  ASSERT_EQ(host.all_reduce({want.data(), count, how.element}, from.data(), how.op),
            Outcome::kDone);
  ASSERT_EQ(span.all_reduce({got.data(), count, how.element}, in_place ? got.data() : from.data(),
                            how.op),
            Outcome::kDone)
      << span.why();
  EXPECT_TRUE(got == want) << count << " numbers: " << name_of(how.op) << " of "
                           << name_of(how.element);
}

// ---- bits ---------------------------------------------------------------------------------------

TEST(Span, ReducesToTheBitsOfOneHost) {
  for (const Hosts& hosts : layouts()) {
    SCOPED_TRACE(name(hosts));
    SpanJob job(hosts);
    job.base().window_bytes = 64 << 10;  // Portions of 32 KiB.
    job.run_beside_one_host([](Group& span, Group& host) {
      for (const Reduction how : all_reductions()) {
        const std::size_t size = size_of(how.element);
        // A few numbers; 8 KiB, which is still small; and several pieces, the last one not full.
        for (const std::size_t count :
             std::initializer_list<std::size_t>{std::size_t{3}, 8192 / size, 100'000 / size}) {
          expect_same_sums(span, host, how, count, count % 2 == 0);
        }
      }
      for (const std::size_t count :
           std::initializer_list<std::size_t>{0, 1, 2048, 2049, 8191, 8192, 8193, 16'384, 16'385}) {
        expect_same_sums(span, host, {Element::kFloat32, Op::kSum}, count, false);
        expect_same_sums(span, host, {Element::kFloat16, Op::kAverage}, count, true);
      }
    });
  }
}

TEST(Span, ReducesMegabytesToTheBitsOfOneHost) {
  constexpr std::size_t kCount = rounds(1'500'001);
  for (const Hosts& hosts : {Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 1, 1, 2}, Hosts{0, 1, 0}}) {
    SCOPED_TRACE(name(hosts));
    SpanJob job(hosts);
    job.run_beside_one_host([](Group& span, Group& host) {
      for (const bool in_place : {false, true}) {
        expect_same_sums(span, host, {Element::kFloat32, Op::kSum}, kCount, in_place);
        expect_same_sums(span, host, {Element::kBfloat16, Op::kAverage}, kCount, in_place);
      }
    });
  }
}

TEST(Span, NeedsNoWholeMoves) {
  SpanJob job({0, 0, 1, 2, 1});
  job.meeting().most = 3000;
  job.meeting().over_tcp = true;
  job.run_beside_one_host([](Group& span, Group& host) {
    for (int i = 0; i < 20; ++i) {
      expect_same_sums(span, host, {Element::kFloat16, Op::kSum}, 5, false);
      expect_same_sums(span, host, {Element::kFloat32, Op::kMax}, 100'000, true);
    }
  });
}

TEST(Span, ReducesRegisteredMemoryInPlace) {
  constexpr std::size_t kArena = 4 << 20;
  for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 1}, Hosts{0, 1, 0, 1}}) {
    SCOPED_TRACE(name(hosts));
    SpanJob job(hosts, kArena);
    job.run_beside_one_host([](Group& span, Group& host) {
      for (const std::size_t count : std::initializer_list<std::size_t>{
               std::size_t{0}, std::size_t{5}, kArena / 8, kArena / 4}) {
        const std::size_t offset = count == 5 ? 24 : 0;
        const Bytes from = numbers_of_rank(Element::kFloat32, count, span.rank(), count);
        Bytes want = from;
        ASSERT_EQ(host.all_reduce({want.data(), count, Element::kFloat32}), Outcome::kDone);
        std::byte* own = span.registered().data() + offset;
        ASSERT_EQ(span.all_reduce({own, count, Element::kFloat32}, from.data()), Outcome::kDone)
            << span.why();
        EXPECT_TRUE(Bytes(own, own + want.size()) == want) << count;
      }
    });
  }
}

TEST(Span, BroadcastsFromEachRank) {
  for (const Hosts& hosts : layouts()) {
    SCOPED_TRACE(name(hosts));
    SpanJob job(hosts);
    job.base().window_bytes = 64 << 10;
    job.run([](Group& group) {
      for (int root = 0; root < group.world_size(); ++root) {
        for (const std::size_t size :
             std::initializer_list<std::size_t>{0, 1, 8192, 8193, 32'768, 300'001}) {
          const Bytes want = bytes_of_rank(size, root, size);
          Bytes bytes = group.rank() == root ? want : Bytes(size);
          ASSERT_EQ(group.broadcast(bytes, root), Outcome::kDone) << group.why();
          EXPECT_TRUE(bytes == want) << size << " from " << root;
        }
      }
    });
  }
}

TEST(Span, GathersInRankOrder) {
  for (const Hosts& hosts : layouts()) {
    SCOPED_TRACE(name(hosts));
    SpanJob job(hosts);
    job.base().window_bytes = 64 << 10;
    job.run([](Group& group) {
      for (const std::size_t size : std::initializer_list<std::size_t>{0, 1, 3000, 8193, 100'001}) {
        Bytes want;
        for (int k = 0; k < group.world_size(); ++k) {
          const Bytes theirs = bytes_of_rank(size, k, size);
          want.insert(want.end(), theirs.begin(), theirs.end());
        }
        Bytes all(want.size());
        ASSERT_EQ(group.all_gather(bytes_of_rank(size, group.rank(), size), all), Outcome::kDone)
            << group.why();
        EXPECT_TRUE(all == want) << size;
      }
    });
  }
}

// A window is never overwritten before all ranks have read it, whatever operation comes next.
TEST(Span, OperationsOfAllKindsFollowEachOther) {
  for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 1}, Hosts{0, 1, 0, 1, 0}}) {
    SCOPED_TRACE(name(hosts));
    SpanJob job(hosts);
    job.base().window_bytes = hosts.size() == 5 ? 64 << 10 : 16 << 10;
    job.run_beside_one_host([](Group& span, Group& host) {
      for (std::uint64_t i = 0; i < rounds(300); ++i) {
        const std::size_t size = derive(8, i) % (i % 3 == 0 ? 100'000 : 3'000);
        const int root = static_cast<int>(derive(9, i) % 4);
        Bytes got = bytes_of_rank(size, span.rank(), i);
        Bytes want = got;
        switch (derive(10, i) % 3) {
          case 0:
            ASSERT_EQ(span.broadcast(got, root), Outcome::kDone);
            want = bytes_of_rank(size, root, i);
            break;
          case 1:
            ASSERT_EQ(span.all_reduce({got.data(), size, Element::kInt8}), Outcome::kDone);
            ASSERT_EQ(host.all_reduce({want.data(), size, Element::kInt8}), Outcome::kDone);
            break;
          default:
            got.resize(size * static_cast<std::size_t>(span.world_size()));
            want = got;
            ASSERT_EQ(span.all_gather(bytes_of_rank(size, span.rank(), i), got), Outcome::kDone);
            ASSERT_EQ(host.all_gather(bytes_of_rank(size, span.rank(), i), want), Outcome::kDone);
        }
        ASSERT_TRUE(got == want) << "operation " << i << " of " << size << " bytes";
      }
    });
  }
}

// ---- mismatch and leaving -----------------------------------------------------------------------

TEST(Span, AMismatchIsSaidByAllInTheSameWords) {
  for (const Hosts& hosts : layouts()) {
    SCOPED_TRACE(name(hosts));
    SpanJob job(hosts);
    std::mutex mutex;
    std::set<std::string> sentences;
    job.run([&](Group& group) {
      std::vector<float> numbers(group.rank() == 1 ? 10 : 11);
      ASSERT_EQ(group.barrier(), Outcome::kDone);
      EXPECT_EQ(group.all_reduce(std::span(numbers)), Outcome::kMismatch);
      EXPECT_EQ(group.barrier(), Outcome::kMismatch) << "a mismatch must be final";
      const std::lock_guard lock(mutex);
      sentences.insert(group.why());
    });
    ASSERT_EQ(sentences.size(), 1U);
    EXPECT_NE(sentences.begin()->find("rank 1 for an all-reduce of 40 bytes of float32 anywhere "
                                      "in memory (operation 2)"),
              std::string::npos)
        << *sentences.begin();
  }
}

TEST(Span, ImpossibleRequestsAreRefusedByAll) {
  SpanJob job({0, 0, 1});
  job.run([](Group& group) {
    std::vector<std::byte> bytes(5);
    EXPECT_EQ(group.broadcast(bytes, 3), Outcome::kMismatch);
    EXPECT_NE(group.why().find("which is no rank of the group"), std::string::npos);
  });
}

TEST(Span, WhoeverWaitsForARankThatHasLeftIsTold) {
  for (const Hosts& hosts : layouts()) {
    for (int leaver = 0; leaver < static_cast<int>(hosts.size()); ++leaver) {
      SCOPED_TRACE(cat(name(hosts), ": ", leaver));
      SpanJob job(hosts);
      std::latch told(job.size() - 1);  // Keeps groups alive: one that ended would be leaving, too.
      job.run([&](Group& group) {
        std::vector<float> numbers(100'000);
        EXPECT_EQ(group.all_reduce(std::span(numbers)), Outcome::kDone);
        if (group.rank() == leaver) return group.leave();
        EXPECT_EQ(group.all_reduce(std::span(numbers)), Outcome::kLeft);
        EXPECT_EQ(group.why(), cat("rank ", leaver,
                                   " has ended training and will not come to what "
                                   "rank ",
                                   group.rank(),
                                   " asked for: an all-reduce of 400000 "
                                   "bytes of float32 anywhere in memory (operation 2)"));
        EXPECT_EQ(group.barrier(), Outcome::kLeft);
        told.arrive_and_wait();
      });
    }
  }
}

// ---- abort --------------------------------------------------------------------------------------

// All ranks must get kAborted after `disturb`, which is called while they make sums.
void expect_all_aborted(SpanJob& job, std::size_t count,
                        const std::function<void(std::vector<std::unique_ptr<Group>>&)>& disturb) {
  std::vector<std::unique_ptr<Group>> groups(static_cast<std::size_t>(job.size()));
  std::atomic<std::uint64_t> sums = 0;
  {
    std::vector<std::jthread> joining;
    for (int k = 0; k < job.size(); ++k) {
      joining.emplace_back([&, k] { groups[static_cast<std::size_t>(k)] = job.join(k); });
    }
  }
  for (const auto& group : groups) ASSERT_NE(group, nullptr);
  std::vector<std::jthread> threads;
  for (const auto& group : groups) {
    threads.emplace_back([&] {
      std::vector<float> numbers(count, 1);
      Outcome o = Outcome::kDone;
      for (; o == Outcome::kDone; ++sums) o = group->all_reduce(std::span(numbers));
      EXPECT_EQ(o, Outcome::kAborted) << group->why();
      EXPECT_TRUE(group->aborted());
      EXPECT_EQ(group->barrier(), Outcome::kAborted);
    });
  }
  while (sums < groups.size()) std::this_thread::yield();
  disturb(groups);
  threads.clear();
  ++job.base().generation;
}

TEST(Span, AnAbortByAnyRankEndsAllInTheMidst) {
  for (const Hosts& hosts : {Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 1}, Hosts{0, 1, 0, 1},
                             Hosts{0, 1, 2, 2, 3}}) {
    SpanJob job(hosts);
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      for (const std::size_t count : std::initializer_list<std::size_t>{10U, 1'000'000U}) {
        SCOPED_TRACE(cat(name(hosts), ": ", rank, " while ", count));
        expect_all_aborted(job, count, [&](auto& groups) { groups[rank]->abort(); });
      }
    }
  }
}

TEST(Span, AnAbortEndsTheWaitForARankThatNeverComes) {
  for (const Hosts& hosts : {Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 1, 2}}) {
    SCOPED_TRACE(name(hosts));
    SpanJob job(hosts);
    std::atomic<int> waiting = 0;
    job.run([&](Group& group) {
      if (group.rank() == group.world_size() - 1) {
        while (waiting < group.world_size() - 1) std::this_thread::yield();
        return group.abort();
      }
      ++waiting;
      EXPECT_EQ(group.barrier(), Outcome::kAborted);
    });
  }
}

TEST(Span, AnotherHostsAbortEndsTheWaitForAMate) {
  SpanJob job({0, 0, 1});
  std::atomic<bool> waiting = false;
  job.run([&](Group& group) {
    if (group.rank() == 0) {
      waiting = true;
      EXPECT_EQ(group.barrier(), Outcome::kAborted);
    } else if (group.rank() == 1) {  // Does not come before.
      while (!group.aborted()) std::this_thread::yield();
    } else {
      while (!waiting) std::this_thread::yield();
      group.abort();
    }
  });
}

TEST(Span, TheEndOfAnyLinkEndsAllInTheMidst) {
  for (const Hosts& hosts : {Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 1, 2, 2}}) {
    for (std::size_t link = 0, links = 1; link < links; ++link) {
      SCOPED_TRACE(cat(name(hosts), ": link ", link));
      SpanJob job(hosts);
      std::vector<os::Fd> ends;
      job.meeting().on_link = [&](const Meeting::Key&, int end, int) {
        ends.emplace_back(::dup(end));
      };
      expect_all_aborted(job, 300'000, [&](auto&) {
        links = ends.size();
        ::shutdown(ends[link].get(), SHUT_RDWR);
      });
    }
  }
}

// A peer that writes other bytes than expected ends the group, as if it were gone.
TEST(Span, NonsenseFromALinkEndsAll) {
  SpanJob job({0, 0, 1});
  for (std::size_t link = 0; link < 4; ++link) {
    std::vector<os::Fd> ends;
    job.meeting().on_link = [&](const Meeting::Key&, int one, int other) {
      ends.emplace_back(::dup(one));
      ends.emplace_back(::dup(other));
    };
    expect_all_aborted(job, 300'000, [&](auto&) {
      const std::string nonsense(100, '?');
      for (std::size_t i = 0; i < 6; ++i) {
        (void)::send(ends[(link + i) % ends.size()].get(), nonsense.data(), nonsense.size(),
                     MSG_NOSIGNAL | MSG_DONTWAIT);
      }
    });
  }
}

// Links that falsify bytes never crash or hang a rank, and no operation succeeds with wrong bytes.
TEST(Span, LinksThatLieBreakNothing) {
  std::atomic<int> formed = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SpanJob job(seed % 2 == 0 ? Hosts{0, 0, 1, 2} : Hosts{0, 1, 0});
    job.meeting().liars = seed;
    job.base().join_timeout = std::chrono::milliseconds(100);
    std::vector<std::jthread> threads;
    for (int k = 0; k < job.size(); ++k) {
      threads.emplace_back([&, k] {
        const auto group = Group::join(job.options(k));
        if (!group) return;
        ++formed;
        std::vector<std::int32_t> numbers(50'000);
        Outcome o = Outcome::kDone;
        for (std::size_t i = 0; o == Outcome::kDone; ++i) {
          o = (*group)->all_reduce(std::span(numbers).first(i % 2 == 0 ? 10 : 50'000));
          const bool is_right = std::ranges::all_of(numbers, [](auto n) { return n == 0; });
          EXPECT_TRUE(is_right || o != Outcome::kDone) << "seed " << seed << ", operation " << i;
        }
        (*group)->abort();
      });
    }
  }
  EXPECT_GT(formed, 30);
}

// ---- joining ------------------------------------------------------------------------------------

TEST(Span, JoiningEndsForAllWhenAHostDoesNotCome) {
  SpanJob job({0, 0, 1, 2});
  job.base().join_timeout = std::chrono::milliseconds(200);
  std::vector<std::jthread> threads;
  for (int k = 0; k < 3; ++k) {
    threads.emplace_back([&, k] { EXPECT_FALSE(Group::join(job.options(k))); });
  }
}

TEST(Span, JoiningEndsForAllWhenOneIsCancelled) {
  SpanJob job({0, 0, 1, 2});
  std::stop_source stop;
  std::vector<std::jthread> threads;
  for (int k = 0; k < 2; ++k) {
    threads.emplace_back([&, k] {
      EXPECT_FALSE(Group::join(job.options(k), k == 1 ? stop.get_token() : std::stop_token()));
    });
  }
  std::this_thread::yield();
  stop.request_stop();
}

TEST(Span, JoiningRefusesOtherOptions) {
  SpanJob job({0, 0, 1});
  std::vector<std::jthread> threads;
  for (int k = 0; k < 3; ++k) {
    threads.emplace_back([&, k] {
      Group::Options o = job.options(k);
      if (k == 2) o.window_bytes *= 2;
      const auto group = Group::join(o);
      ASSERT_FALSE(group);
      EXPECT_EQ(group.error().blame, Blame::kPeer) << group.error().what;
    });
  }
}

TEST(Span, JoiningRefusesALayoutThatDoesNotFit) {
  SpanJob job({0, 1});
  const auto error_of = [](const Group::Options& options) {
    const auto group = Group::join(options);
    return group ? std::string("joined") : group.error().what;
  };
  Group::Options o = job.options(0);
  o.layout.host_of.pop_back();
  EXPECT_EQ(error_of(o),
            "layout.host_of names the hosts of 1 ranks, but the group has 2; one host "
            "per rank is needed");
  o = job.options(0);
  o.world_ranks = {1};
  EXPECT_EQ(error_of(o),
            "world_ranks names 1 ranks, but the group has 2; one of the world per "
            "rank is needed");
  o = job.options(0);
  o.layout.links = nullptr;
  EXPECT_EQ(error_of(o),
            "layout.links is null, but the ranks lie on several hosts; give it the links");
}

// ---- teams --------------------------------------------------------------------------------------

void expect_done(Result<Operation> operation) {
  ASSERT_TRUE(operation) << operation.error().what;
  const auto verdict = (*std::move(operation)).run();
  ASSERT_TRUE(verdict) << verdict.error().what;
  EXPECT_EQ(verdict->outcome, Outcome::kDone) << verdict->why;
}

void use(Team& team) {
  const std::int32_t me = team.rank();
  const std::int32_t n = team.size();
  std::vector<std::int32_t> sum(3);
  const std::vector<std::int32_t> mine = {me, 1, 10};
  expect_done(all_reduce(team, mine.data(), std::span(sum), Op::kSum));
  EXPECT_EQ(sum, (std::vector{n * (n - 1) / 2, n, 10 * n}));
  std::vector<std::int32_t> share(1);
  std::vector<std::int32_t> rows(static_cast<std::size_t>(n), me);
  expect_done(reduce_scatter(team, rows.data(), std::span(share), Op::kMax));
  EXPECT_EQ(share[0], n - 1);
  const std::vector<std::uint64_t> fours(static_cast<std::size_t>(n), 4);
  std::vector<std::int32_t> in(static_cast<std::size_t>(n));
  for (std::int32_t k = 0; k < n; ++k) rows[static_cast<std::size_t>(k)] = 100 * me + k;
  expect_done(all_to_all(team, {std::as_writable_bytes(std::span(rows)).data(), fours},
                         {std::as_writable_bytes(std::span(in)).data(), fours}, true));
  for (std::int32_t k = 0; k < n; ++k) EXPECT_EQ(in[static_cast<std::size_t>(k)], 100 * k + me);
  Bytes parcel = me == 0 ? bytes_of_rank(100'000, 0, 1) : Bytes(100'000);
  if (me == 0) expect_done(send(team, parcel, n - 1, 3));
  if (me == n - 1) {
    expect_done(receive(team, parcel, 0, 3));
    EXPECT_TRUE(parcel == bytes_of_rank(100'000, 0, 1));
  }
}

TEST(Span, TeamsLieAcrossHostsToo) {
  SpanJob job({0, 0, 1, 1, 2});
  std::vector<std::jthread> threads;
  for (Rank rank = 0; rank < 5; ++rank) {
    threads.emplace_back([&, rank] {
      const auto current = std::make_shared<CurrentGeneration>(
          CurrentGeneration::Options{.directory = job.directory_of(job.host_of(rank)),
                                     .run_id = 7,
                                     .join_timeout = std::chrono::minutes(1)});
      for (Generation generation = 1; generation < 4; ++generation) {
        (void)current->begin(generation, job.layout(rank));
        EXPECT_EQ(current->now().layout->host_of.size(), 5U);
        for (const std::vector<Rank>& members :
             {std::vector<Rank>{4, 1, 2}, std::vector<Rank>{3, 2}, std::vector<Rank>{1, 0, 3}}) {
          if (std::find(members.begin(), members.end(), rank) == members.end()) continue;
          const std::string called = cat("team-", members.size(), "-", members[0]);
          auto team = Team::open(current, rank, 5, members, called, "t-");
          ASSERT_TRUE(team) << team.error().what;
          use(**team);
        }
        (void)current->abort(generation);
      }
    });
  }
}

}  // namespace
}  // namespace holdfast::collective
