// What a parameter server's tables cost, without a network: rows a second of pulls and of steps.
//
// bench_tables FOLDER [ROWS] [VALUES] [KEYS]
//
// FOLDER is on a tmpfs. The keys of a batch are Zipf's, with exponent 1, among ROWS. A step gathers
// KEYS gradients and updates the rows they touch, by SGD and by Adagrad. One thread.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/prng.h"
#include "table/tables.h"

namespace {

using holdfast::Prng;
using holdfast::table::Arguments;
using holdfast::table::Spec;
using holdfast::table::Tables;
using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2),
                   all.end());
  return all[all.size() / 2];
}

// By the inverse of the continuous distribution with density 1/x.
std::vector<std::uint64_t> zipf(Prng& random, std::uint64_t rows, std::size_t keys) {
  std::vector<std::uint64_t> all;
  for (std::size_t i = 0; i < keys; ++i) {
    const double u = static_cast<double>(random.next() >> 11) * 0x1p-53;
    const double x = std::exp(u * std::log(static_cast<double>(rows) + 1));
    all.push_back(holdfast::mix(static_cast<std::uint64_t>(x)));
  }
  return all;
}

void take(const holdfast::Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.error().what.c_str());
  std::exit(1);
}

void measure(const std::string& folder, Spec spec, std::uint64_t rows, std::size_t keys) {
  spec.initial = {holdfast::table::Initial::Kind::kUniform, -0.01, 0.01};
  auto tables = Tables::open(folder + "/bench.tables", {spec}, 1);
  take(tables ? holdfast::Status() : holdfast::Status(tables.error()));
  if (tables->fresh()) tables->begin(0, {});
  const std::vector<Arguments> arguments = {{.learning_rate = 0.01}};
  std::vector<float> gradients(std::max<std::size_t>(keys, 100'000) * spec.values, 0.1F);
  std::vector<std::uint64_t> some;
  const auto filled = Clock::now();
  for (std::uint64_t key = 0; key <= rows; ++key) {
    some.push_back(holdfast::mix(key));
    if (some.size() < 100'000 && key < rows) continue;
    take(tables->add(0, some, std::span(gradients).first(some.size() * spec.values)));
    take(tables->stage(tables->version() + 1, {}, arguments));
    tables->update(1);
    some.clear();
  }
  const double fill = seconds(filled);
  const auto opened = Clock::now();
  { auto again = Tables::open(folder + "/bench.tables", {spec}, 1); }
  const double open = seconds(opened);
  Prng random(7);
  std::vector<double> pulls, adds, stages, updates;
  std::vector<float> out(keys * spec.values);
  for (int round = 0; round < 15; ++round) {
    const auto batch = zipf(random, rows, keys);
    auto began = Clock::now();
    tables->read(0, batch, out);
    pulls.push_back(seconds(began));
    began = Clock::now();
    take(tables->add(0, batch, std::span(gradients).first(keys * spec.values)));
    adds.push_back(seconds(began));
    began = Clock::now();
    take(tables->stage(tables->version() + 1, {}, arguments));
    stages.push_back(seconds(began));
    began = Clock::now();
    tables->update(1);
    updates.push_back(seconds(began));
  }
  const double n = static_cast<double>(keys);
  const double live = static_cast<double>(tables->rows(0));
  std::printf(
      "%9.0f rows x %4u, %2zu state floats: pull %6.1f M rows/s; push %6.1f (gather %.1f ms, "
      "stage %.1f, update %.1f); bytes %.2f of rows and state; filled in %.1f s, opened in "
      "%.2f ms\n",
      live, spec.values, spec.state_floats(), n / median(pulls) / 1e6,
      n / (median(adds) + median(stages) + median(updates)) / 1e6, median(adds) * 1e3,
      median(stages) * 1e3, median(updates) * 1e3,
      static_cast<double>(tables->bytes()) / live / static_cast<double>(spec.row_bytes()), fill,
      open * 1e3);
  std::remove((folder + "/bench.tables").c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_tables FOLDER [ROWS] [VALUES] [KEYS]\n");
    return 2;
  }
  const std::uint64_t rows = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1'000'000;
  const auto values = static_cast<std::uint32_t>(argc > 3 ? std::atoi(argv[3]) : 16);
  const std::size_t keys = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 4096 * 26;
  using Rule = holdfast::table::Optimizer::Rule;
  for (const Rule rule : {Rule::kSgd, Rule::kAdagrad}) {
    measure(argv[1],
            {.name = "bench", .values = values, .optimizer = {.rule = rule, .epsilon = 1e-6}}, rows,
            keys);
  }
}
