#include "core/controller/key_values.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "base/text.h"
#include "core/controller/machine.h"

namespace holdfast::controller {
namespace {

using Outcome = KeyValues::Outcome;

Outcome put(KeyValues& values, const std::string& key, const std::string& value) {
  return values.put({.id = 0, .key = key, .value = value})->outcome;
}

// "set 3", "other 2", ...: the outcome of a change, and the key's version.
std::string change(KeyValues& values, std::uint64_t id, wire::KeyVersion expected,
                   const std::string& value, std::uint64_t writer = 1) {
  const auto written =
      values.put({.id = id, .key = "a", .value = value, .expected = expected, .writer = writer});
  if (!written) return "nothing";
  constexpr const char* kNames[] = {"set", "other", "no room", "repeated"};
  return cat(kNames[static_cast<int>(written->outcome)], written->is_set() ? "" : " not", " ",
             written->version);
}

// The answer to a Get that does not wait.
std::string look(KeyValues& values, const std::vector<std::string>& keys) {
  Found found;
  EXPECT_TRUE(values.get(9, {.id = 1, .keys = keys, .at_once = true}, found));
  return found ? cat(found->key, "=", found->value) : "nothing";
}

bool ask(KeyValues& values, Link link, std::uint64_t id, std::vector<std::string> keys,
         wire::KeyVersion newer_than = 0) {
  Found found;
  return values.get(link, {.id = id, .keys = std::move(keys), .newer_than = newer_than}, found);
}

TEST(KeyValues, TheFirstValueStays) {
  KeyValues values;
  EXPECT_EQ(look(values, {"a"}), "nothing");
  EXPECT_EQ(put(values, "a", "1"), Outcome::kSet);
  EXPECT_EQ(put(values, "a", "2"), Outcome::kOther);
  EXPECT_EQ(put(values, "b", ""), Outcome::kSet);
  EXPECT_EQ(look(values, {"a"}), "a=1");
  EXPECT_EQ(look(values, {"x", "b", "a"}), "b=") << "the first of the asked that is there";
  EXPECT_EQ(values.bytes(), 3U);
}

TEST(KeyValues, WhoWaitsForAnyOfSomeIsAnsweredOnce) {
  KeyValues values;
  EXPECT_FALSE(ask(values, 1, 5, {"a", "b"}));
  EXPECT_FALSE(ask(values, 2, 5, {"b", "b"}));
  ASSERT_EQ(put(values, "b", "v"), Outcome::kSet);
  const auto told = values.answers("b");
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].link, 1U);
  EXPECT_EQ(told[0].id, 5U);
  EXPECT_EQ(told[0].found->key, "b");
  EXPECT_EQ(told[1].link, 2U);
  ASSERT_EQ(put(values, "a", "w"), Outcome::kSet);
  EXPECT_TRUE(values.answers("a").empty());
  EXPECT_TRUE(values.answers("b").empty());
}

TEST(KeyValues, ALaterGetTakesThePlaceOfTheOneWithItsNumber) {
  KeyValues values;
  EXPECT_FALSE(ask(values, 1, 5, {"a"}));
  EXPECT_FALSE(ask(values, 1, 5, {"b"}));
  ASSERT_EQ(put(values, "a", ""), Outcome::kSet);
  EXPECT_TRUE(values.answers("a").empty());
  Found found;
  EXPECT_TRUE(values.get(1, {.id = 5, .keys = {}, .at_once = true}, found));
  EXPECT_EQ(found, nullptr);
}

TEST(KeyValues, WhatALinkWaitsForDiesWithIt) {
  KeyValues values;
  EXPECT_FALSE(ask(values, 1, 1, {"a"}));
  EXPECT_FALSE(ask(values, 1, 2, {"a", "b"}));
  EXPECT_FALSE(ask(values, 2, 1, {"a"}));
  values.closed(1);
  values.closed(3);
  ASSERT_EQ(put(values, "a", ""), Outcome::kSet);
  EXPECT_EQ(values.answers("a").size(), 1U);
}

TEST(KeyValues, BytesAreBounded) {
  KeyValues values;
  const std::string part((16U << 20U) - 1, 'v');
  for (int i = 0; i < 16; ++i)
    ASSERT_EQ(put(values, std::string(1, static_cast<char>('a' + i)), part), Outcome::kSet);
  EXPECT_EQ(values.bytes(), kMaxStoredBytes);
  EXPECT_EQ(put(values, "z", ""), Outcome::kNoRoom);
  EXPECT_EQ(put(values, "", ""), Outcome::kSet) << "it takes none";
  EXPECT_EQ(put(values, "a", part), Outcome::kOther) << "what is there needs no room";
}

TEST(KeyValues, TheirNumberIsBounded) {
  KeyValues values;
  for (std::size_t i = 0; i < kMaxStoredKeys; ++i)
    ASSERT_EQ(put(values, cat(i), ""), Outcome::kSet);
  EXPECT_EQ(put(values, "more", ""), Outcome::kNoRoom);
  EXPECT_EQ(values.size(), kMaxStoredKeys);
  EXPECT_EQ(put(values, wire::kSucceeded, ""), Outcome::kSet) << "the scheduler's own";
}

TEST(KeyValues, ComeBackAndGo) {
  KeyValues values;
  values.restore({{"a", "1"}, {"b", "22"}}, {});
  EXPECT_EQ(look(values, {"b"}), "b=22");
  EXPECT_EQ(values.bytes(), 5U);
  EXPECT_FALSE(ask(values, 1, 1, {"c"}));
  values.clear();
  EXPECT_EQ(look(values, {"b"}), "nothing");
  EXPECT_EQ(values.bytes(), 0U);
}

TEST(KeyValues, AChangeIsMadeAtTheExpectedVersionOnly) {
  KeyValues values;
  EXPECT_EQ(change(values, 1, 1, "x"), "other not 0");
  EXPECT_EQ(change(values, 2, 0, "x"), "set 1");
  EXPECT_EQ(change(values, 3, 0, "y"), "other not 1");
  EXPECT_EQ(change(values, 4, 1, "yy"), "set 2");
  EXPECT_EQ(change(values, 5, wire::kAnyKeyVersion, "z"), "set 3");
  EXPECT_EQ(look(values, {"a"}), "a=z");
  EXPECT_EQ(values.bytes(), 2U) << "what is replaced takes no room";
}

TEST(KeyValues, WhatAWriterSaysTwiceIsDoneOnce) {
  KeyValues values;
  EXPECT_EQ(change(values, 1, 0, "x"), "set 1");
  EXPECT_EQ(change(values, 1, wire::kAnyKeyVersion, "of another writer", 2), "set 2");
  EXPECT_EQ(change(values, 1, 0, "x"), "repeated 1");
  EXPECT_EQ(change(values, 2, 1, "y"), "other not 2");
  EXPECT_EQ(change(values, 3, wire::kAnyKeyVersion, "y", 2), "set 3");
  EXPECT_EQ(change(values, 2, 3, "y"), "other not 2") << "it has been refused";
  EXPECT_EQ(change(values, 1, 3, "x"), "nothing") << "an earlier word, heard late";
  EXPECT_EQ(look(values, {"a"}), "a=y");
}

TEST(KeyValues, WhatAWriterSaidIsKnownAfterARestart) {
  KeyValues values;
  values.restore({{"a", "x", 7}}, {{.writer = 1, .id = 4, .version = 6}});
  EXPECT_EQ(change(values, 4, wire::kAnyKeyVersion, "again"), "repeated 6");
  EXPECT_EQ(change(values, 5, 7, "next"), "set 8");
}

TEST(KeyValues, WhoWaitsForANewerVersionIsAnsweredByThat) {
  KeyValues values;
  EXPECT_EQ(change(values, 1, 0, "x"), "set 1");
  EXPECT_FALSE(ask(values, 1, 5, {"a"}, 1));
  EXPECT_FALSE(ask(values, 2, 5, {"a"}, 2));
  EXPECT_TRUE(values.answers("a").empty());
  EXPECT_EQ(change(values, 2, 1, "y"), "set 2");
  const auto told = values.answers("a");
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].link, 1U);
  EXPECT_EQ(change(values, 3, 2, "z"), "set 3");
  EXPECT_EQ(told[0].found->value, "y") << "as it was when it was found";
  ASSERT_EQ(values.answers("a").size(), 1U);
}

TEST(KeyValues, AValueInPlaceOfALargerOneMakesRoom) {
  KeyValues values;
  const std::string part((16U << 20U) - 1, 'v');
  for (int i = 0; i < 16; ++i) {
    ASSERT_EQ(put(values, std::string(1, static_cast<char>('a' + i)), part), Outcome::kSet);
  }
  EXPECT_EQ(change(values, 1, 1, part + "v"), "no room not 1");
  EXPECT_EQ(change(values, 1, 1, part + "v"), "no room not 1") << "said again";
  EXPECT_EQ(change(values, 2, 1, part), "set 2");
  EXPECT_EQ(change(values, 3, 2, ""), "set 3");
  EXPECT_EQ(values.bytes(), kMaxStoredBytes - part.size());
}

TEST(KeyValues, TheNumberOfWritersIsBounded) {
  KeyValues values;
  for (std::uint64_t writer = 1; writer <= kMaxStoredKeys; ++writer) {
    ASSERT_NE(change(values, 1, wire::kAnyKeyVersion, "", writer), "no room not 0");
  }
  EXPECT_EQ(change(values, 1, wire::kAnyKeyVersion, "", kMaxStoredKeys + 1), "no room not 0");
  EXPECT_EQ(change(values, 2, kMaxStoredKeys, "", 1), cat("set ", kMaxStoredKeys + 1));
}

// ---- The machine's part ------------------------------------------------------------------------

Actions hear(Machine& machine, Link link, wire::Message message) {
  const bool agent = std::holds_alternative<wire::AgentState>(message);
  Actions all;
  if (!machine.peers().contains(link)) {
    const auto kind = agent ? wire::PeerKind::kAgent : wire::PeerKind::kWorker;
    all = machine.step({}, Connected{link, kind});
  }
  for (auto& action : machine.step({}, Received{link, std::move(message)})) all.push_back(action);
  return all;
}

Actions put(Machine& machine, Link link, const std::string& key, const std::string& value) {
  return hear(machine, link, wire::Put{link, key, value});
}

struct Begun : Machine {
  explicit Begun(std::vector<wire::KeyValue> kept = {},
                 std::optional<wire::Formation> stored = std::nullopt)
      : Machine({.job = "job", .run_id = 7, .world_size = 1}, std::move(stored)) {
    (void)step({}, Started{std::move(kept), {}});
  }
};

std::string said(const Actions& actions) {
  std::string all;
  for (const auto& action : actions) {
    if (const auto* store = std::get_if<Store>(&action)) {
      all += cat("store", store->formation ? " all" : "");
      for (const auto& pair : store->kept) all += cat(' ', pair.key, '=', pair.value);
    } else if (const auto* send = std::get_if<Send>(&action)) {
      if (const auto* kept = std::get_if<wire::Kept>(&send->message)) {
        all += cat(send->link, kept->reason == wire::Reason{} ? " kept" : " no room");
      } else if (const auto* got = std::get_if<wire::Got>(&send->message)) {
        all += cat(send->link, " got ", got->found ? cat(got->key, '=', got->value) : "nothing");
      } else {
        all += cat(send->link, " other");
      }
    } else if (const auto* answer = std::get_if<Answer>(&action)) {
      all += cat(answer->link, " got ", answer->found->key, '=', answer->found->value);
    } else {
      all += std::holds_alternative<Close>(action) ? "close" : "else";
    }
    all += "; ";
  }
  return all;
}

TEST(KeyValuesOfAJob, NobodyHearsOfAValueThatIsNotDurable) {
  Begun machine;
  EXPECT_EQ(said(hear(machine, 1, wire::Get{5, {"a"}})), "");
  EXPECT_EQ(said(put(machine, 2, "a", "1")), "store a=1; ");
  EXPECT_EQ(said(put(machine, 3, "a", "2")), "");
  EXPECT_EQ(said(hear(machine, 4, wire::Get{5, {"b", "a"}, true})), "");
  EXPECT_EQ(said(machine.step({}, Stored{})), "2 kept; 1 got a=1; 3 kept; 4 got a=1; ");
  EXPECT_EQ(said(hear(machine, 4, wire::Get{5, {"b"}, true})), "4 got nothing; ");
}

// The first change is not durable when the second is made. Each change gets its own answer.
TEST(KeyValuesOfAJob, WhoAskedIsToldTheValueThatIsDurable) {
  Begun machine;
  (void)hear(machine, 1, wire::Get{5, {"a"}});
  const auto set = [&](std::uint64_t id, const std::string& value) {
    return said(hear(machine, 2, wire::Put{id, "a", value, wire::kAnyKeyVersion, 2}));
  };
  EXPECT_EQ(set(1, "x"), "store a=x; ");
  EXPECT_EQ(set(2, "y"), "store a=y; ") << "with the first one, if that has not begun";
  EXPECT_EQ(said(machine.step({}, Stored{})), "2 kept; 1 got a=x; ");
  EXPECT_EQ(said(hear(machine, 4, wire::Get{5, {"a"}, true})), "") << "that is y";
  EXPECT_EQ(said(machine.step({}, Stored{})), "2 kept; 4 got a=y; ");
}

TEST(KeyValuesOfAJob, WhatIsDurableIsToldWhileSomethingElseIsStored) {
  Begun machine({wire::KeyValue{"old", "1"}});
  EXPECT_EQ(said(put(machine, 2, "new", "2")), "store new=2; ");
  EXPECT_EQ(said(hear(machine, 1, wire::Get{5, {"old"}})), "1 got old=1; ");
  EXPECT_EQ(said(hear(machine, 1, wire::Get{6, {"none"}, true})), "1 got nothing; ");
  EXPECT_EQ(said(machine.step({}, Stored{})), "2 kept; ");
}

// P36: all kinds of unanswered questions count.
TEST(KeyValuesOfAJob, WhatALinkWaitsForIsBounded) {
  Begun machine;
  EXPECT_EQ(said(put(machine, 2, "a", "1")), "store a=1; ");
  std::uint64_t id = 0;
  for (; id < kMaxUnanswered - 1; ++id) {
    const wire::Get waits{id, {"x"}};
    const wire::Get held{id, {"a"}, true};
    EXPECT_EQ(said(hear(machine, 1, id % 2 == 0 ? waits : held)), "");
  }
  EXPECT_EQ(said(put(machine, 1, "a", "2")), "");
  EXPECT_EQ(said(hear(machine, 1, wire::Get{0, {"x"}})), "") << "in the place of an earlier one";
  EXPECT_EQ(said(hear(machine, 3, wire::Get{0, {"a"}})), "") << "of another link";
  EXPECT_EQ(said(hear(machine, 1, wire::Get{id, {"a"}, true})), "");
  EXPECT_EQ(said(put(machine, 1, "b", "2")), "") << "nothing is heard there any more";
  const std::string end = said(machine.step({}, Stored{}));
  EXPECT_TRUE(end.ends_with("1 kept; 3 got a=1; 1 got a=1; close; ")) << end;
  Begun other;
  EXPECT_EQ(said(put(other, 2, "a", "1")), "store a=1; ");
  for (id = 0; id <= kMaxUnanswered; ++id) (void)put(other, 1, "a", "2");
  EXPECT_TRUE(said(other.step({}, Stored{})).ends_with("1 kept; close; "));
}

TEST(KeyValuesOfAJob, WhatIsNotDurableIsBounded) {
  Begun machine;
  const std::string part(16U << 20U, 'v');
  const auto set = [&] {
    return said(hear(machine, 1, wire::Put{1, "a", part, wire::kAnyKeyVersion}));
  };
  std::size_t stores = 0;
  while (set().starts_with("store")) ++stores;
  EXPECT_EQ(stores, kMaxStoredBytes / part.size() + 1);
  for (; stores > 1; --stores) (void)machine.step({}, Stored{});
  EXPECT_EQ(said(machine.step({}, Stored{})), "1 kept; close; ");
}

TEST(KeyValuesOfAJob, ComeBackWithTheJournal) {
  wire::Formation stored{.job = "job", .run_id = 7};
  Begun machine({{"a", "1"}}, stored);
  EXPECT_EQ(said(put(machine, 2, "a", "2")), "2 kept; ");
  EXPECT_EQ(said(hear(machine, 4, wire::Get{5, {"a"}})), "4 got a=1; ");
}

TEST(KeyValuesOfAJob, EndWithTheJobAndWhoWaitsIsTold) {
  Begun machine({wire::KeyValue{"a", "1"}});
  (void)hear(machine, 1, wire::Get{5, {"b"}});
  (void)hear(machine, 2, wire::AgentState{.job = "job", .places = {{"a"}}});
  EXPECT_EQ(said(hear(machine, 2, wire::Failed{})), "store all; ");
  const std::string end = said(machine.step({}, Stored{}));
  EXPECT_NE(end.find("1 other; close; "), std::string::npos) << end;
  EXPECT_EQ(said(hear(machine, 3, wire::Get{5, {"a"}, true})), "3 other; close; ");
  EXPECT_EQ(said(put(machine, 3, "c", "")), "") << "it has been told";
}

TEST(KeyValuesOfAJob, ThereIsAnEndToThem) {
  Begun machine;
  const std::string part(16U << 20U, 'v');
  for (int i = 0; i < 15; ++i) {
    (void)put(machine, 1, cat(i), part);
    (void)machine.step({}, Stored{});
  }
  EXPECT_EQ(said(put(machine, 1, "more", part)), "1 no room; ");
  for (std::uint64_t id = 0; id < kMaxUnanswered; ++id) {
    EXPECT_EQ(said(hear(machine, 1, wire::Get{id, {"x"}})), "");
  }
  EXPECT_EQ(said(hear(machine, 1, wire::Get{0, {"x"}})), "") << "in the place of an earlier one";
  EXPECT_EQ(said(hear(machine, 1, wire::Get{kMaxUnanswered, {"x"}})), "close; ");
}

}  // namespace
}  // namespace holdfast::controller
