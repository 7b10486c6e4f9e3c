// bench_step: a healthy step beside the plain libtorch loop, in turns in one process.
//
//   msrun --worker_num=N bench_step DIR [blocks, default 20] [steps in a block, default 40]
//
// Both loops train 784-512-512-10 with momentum on the digits of DIR at batch 16, and have the same
// body. The plain one is what libtorch's own tutorial shows: its DataLoader with a RandomSampler,
// its SGD. Each rank runs both, so with N workers the plain one runs N times at once, without
// exchanging anything. For each block rank 0 prints its median step in milliseconds, by the clock
// and of processor time, as JSON.
#include <time.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/digits.h"
#include "holdfast/holdfast.h"

namespace {

constexpr std::size_t kBatch = 16;
constexpr double kRate = 0.01;
constexpr double kMomentum = 0.9;

torch::nn::Sequential network() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(784, 512), torch::nn::ReLU(),
                               torch::nn::Linear(512, 512), torch::nn::ReLU(),
                               torch::nn::Linear(512, 10));
}

torch::Tensor loss_of(torch::nn::Sequential& net, const torch::data::Example<>& batch) {
  return torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
}

struct Times {
  double wall;
  double cpu;  // Of all threads of the process: without what others did on the machine meanwhile.
};

double milliseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// The times between the ends of steps.
class Watch {
 public:
  void step_ended() {
    const Times now{milliseconds(CLOCK_MONOTONIC), milliseconds(CLOCK_PROCESS_CPUTIME_ID)};
    if (last_.wall != 0) {
      wall_.push_back(now.wall - last_.wall);
      cpu_.push_back(now.cpu - last_.cpu);
    }
    last_ = now;
  }
  Times median() { return {median_of(wall_), median_of(cpu_)}; }

 private:
  static double median_of(std::vector<double>& times) {
    std::sort(times.begin(), times.end());
    return times.empty() ? 0 : times[times.size() / 2];
  }
  Times last_{};
  std::vector<double> wall_;
  std::vector<double> cpu_;
};

class PlainLoop {
 public:
  explicit PlainLoop(const Digits& data)
      : loader_(torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
            data, torch::data::DataLoaderOptions(kBatch).drop_last(true))),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(kRate).momentum(kMomentum)) {}

  Times block(std::size_t steps) {
    Watch watch;
    while (steps > 0) {
      for (const auto& batch : *loader_) {
        optimizer_.zero_grad();
        auto loss = loss_of(net_, batch);
        loss.backward();
        optimizer_.step();
        total_ += loss.item<double>();
        watch.step_ended();
        if (--steps == 0) break;
      }
    }
    return watch.median();
  }

 private:
  using Loader = torch::data::StatelessDataLoader<Digits, torch::data::samplers::RandomSampler>;
  torch::nn::Sequential net_ = network();
  std::unique_ptr<Loader> loader_;
  torch::optim::SGD optimizer_;
  double total_ = 0;
};

class OurLoop {
 public:
  OurLoop(holdfast::Job& job, Digits& data)
      : data_(data),
        state_(job, net_, holdfast::Momentum{.learning_rate = kRate, .momentum = kMomentum}) {}

  Times block(std::size_t steps) {
    Watch watch;
    const holdfast::StepsOptions options{.epochs = std::numeric_limits<std::uint64_t>::max(),
                                         .batch = kBatch,
                                         .shuffle_seed = 3,
                                         .max_steps = state_.version() + steps};
    bool first = true;
    for (auto& batch : state_.steps(data_, options)) {
      if (!first) watch.step_ended();  // The step before this body.
      first = false;
      auto loss = loss_of(net_, batch);
      state_.step(loss);
      total_ += loss.item<double>();
    }
    watch.step_ended();
    return watch.median();
  }

 private:
  Digits& data_;
  torch::nn::Sequential net_ = network();
  holdfast::State state_;
  double total_ = 0;
};

void print_row(const char* name, const std::vector<Times>& times, const char* end) {
  std::printf("\"%s\": [", name);
  const char* comma = "";
  for (const Times& t : times)
    std::printf("%s[%.4f, %.4f]", std::exchange(comma, ", "), t.wall, t.cpu);
  std::printf("]%s", end);
}

void measure(const std::string& folder, std::size_t blocks, std::size_t steps) {
  auto job = holdfast::init();
  torch::set_num_threads(1);
  Digits data(folder, Digits::Part::kTraining);
  OurLoop ours(job, data);
  PlainLoop plain(data);
  std::vector<Times> of_plain;
  std::vector<Times> of_ours;
  for (std::size_t i = 0; i <= blocks; ++i) {
    const Times a = ours.block(steps);
    const Times b = plain.block(steps);
    if (i == 0) continue;  // To warm up.
    of_ours.push_back(a);
    of_plain.push_back(b);
  }
  if (job.rank() != 0) return;
  std::printf("{");
  print_row("ours", of_ours, ", ");
  print_row("plain", of_plain, "}\n");
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) {
    return static_cast<std::size_t>(argc > i ? std::max(1, std::atoi(argv[i])) : otherwise);
  };
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: bench_step DIR [blocks] [steps in a block]\n");
    return 2;
  }
  try {
    measure(argv[1], number(2, 20), number(3, 40));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
