// What the tests of saved tables share: the tables of some servers, saved and loaded.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/text.h"
#include "os/files.h"
#include "table/saved.h"
#include "table/testing.h"

namespace holdfast::table::testing {

inline std::vector<Spec> saved_specs() {
  return {{.name = "odd/name", .values = 7, .optimizer = {.rule = Optimizer::Rule::kAdam}},
          {.name = "half",
           .values = 5,
           .type = Type::kBfloat16,
           .optimizer = {.rule = Optimizer::Rule::kRowAdagrad}},
          {.name = "plain", .values = 2},
          {.name = "never touched", .values = 4}};
}

// The tables of some servers.
struct Servers {
  Servers(const Directory& folder, const std::string& name, std::size_t count,
          const std::vector<Spec>& specs = saved_specs()) {
    for (std::size_t s = 0; s < count; ++s) {
      auto made = Tables::open(folder.file(cat(name, s)), specs, 5);
      EXPECT_TRUE(made) << made.error().what;
      all.push_back(*std::move(made));
    }
  }
  [[nodiscard]] auto mine(std::size_t server) const {
    return [server, count = all.size()](std::uint64_t key) { return mix(key) % count == server; };
  }
  void begin() {
    for (Tables& tables : all) tables.begin(0, {});
  }
  // Steps of the job from `from` on, whatever the versions are called here.
  void make_steps(Version from, Version to) {
    for (Version n = from; n <= to; ++n) {
      for (std::size_t s = 0; s < all.size(); ++s) {
        for (std::size_t t = 0; t < 3; ++t) add(s, t, n);
        const Version next = all[s].version() + 1;
        ASSERT_TRUE(all[s].stage(next, {}, std::vector<Arguments>(4, arguments_of(n))));
        all[s].update(1);
      }
    }
  }
  void add(std::size_t s, std::size_t t, Version n) {
    const Spec& spec = all[s].specs()[t];
    Push push = push_of(n, spec, 2000, 1000);
    for (std::uint64_t& key : push.keys) key &= greatest_key;
    Push own;
    for (std::size_t i = 0; i < push.keys.size(); ++i) {
      if (!mine(s)(push.keys[i])) continue;
      own.keys.push_back(push.keys[i]);
      const auto gradient = push.gradients.begin() + static_cast<std::ptrdiff_t>(i * spec.values);
      own.gradients.insert(own.gradients.end(), gradient, gradient + spec.values);
    }
    ASSERT_TRUE(all[s].add(t, own.keys, own.gradients));
  }
  [[nodiscard]] std::uint64_t digest() const {
    std::uint64_t sum = 0;
    for (const Tables& tables : all) sum += tables.digest();
    return sum;
  }
  void save(const std::string& folder) const {
    const Saved saved{all[0].specs(), run, all[0].version(), static_cast<Rank>(all.size())};
    for (std::size_t s = 0; s < all.size(); ++s) {
      const Status is_saved = table::save(all[s], folder, saved, static_cast<Rank>(s));
      ASSERT_TRUE(is_saved) << is_saved.error().what;
    }
    const Status written = save_manifest(folder, saved);
    ASSERT_TRUE(written) << written.error().what;
  }
  [[nodiscard]] Status load(const std::string& folder) {
    for (std::size_t s = 0; s < all.size(); ++s) {
      if (Status done = table::load(all[s], folder, mine(s), {}); !done) return done;
    }
    return {};
  }

  std::vector<Tables> all;
  std::uint64_t run = 5;
  std::uint64_t greatest_key = ~std::uint64_t{0};  // A power of 2, less 1.
};

// What a Python program can have as keys.
inline constexpr std::uint64_t kGreatestOfPython = ~std::uint64_t{0} >> 1;

inline void damage(const std::string& path) {
  std::fstream damaged(path, std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekp(-3, std::ios::end);
  damaged.put('!');
}

// Everything that a safetensors file says, read as the format's description has it.
inline nlohmann::json header_in(const std::string& path, std::string& data) {
  const auto text = os::read_file(path);
  EXPECT_TRUE(text) << path;
  std::uint64_t length = 0;
  std::memcpy(&length, text->data(), sizeof length);
  data = text->substr(sizeof length + length);
  return nlohmann::json::parse(text->substr(sizeof length, length));
}

inline void replace_in(const std::string& path, const std::string& what, const std::string& with) {
  auto text = *os::read_file(path);
  const auto at = text.find(what);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, what.size(), with);
  std::ofstream(path) << text;
}

}  // namespace holdfast::table::testing
