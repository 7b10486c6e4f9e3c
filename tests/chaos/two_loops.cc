// two_loops: a training of two loops with an evaluation between them, for loops_test.py, which says
// where its ranks end themselves.
//
//   two_loops --save FILE [--clip NORM] [--drift RANK:STEP] [--flip RANK:STEP] [--die
//   RANK:PLACE]...
//
// A place is "before" the first loop, "between" the two, "after" the second, or the number of a
// step. Only a first process of a rank dies there: whoever replaces it goes on. --drift: a rank
// that changes a parameter for itself in that step. --flip: a rank of whose parameters one bit
// changes in that step, between its backward pass and the update.
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <set>
#include <string>

#include "holdfast/holdfast.h"

namespace {

// Numbers and three classes of them; `shift` tells one data set from another.
class Points : public torch::data::datasets::Dataset<Points> {
 public:
  Points(std::size_t size, std::int64_t shift) : size_(size), shift_(shift) {}
  torch::data::Example<> get(std::size_t i) override {
    const auto at = static_cast<std::int64_t>(i) + shift_;
    return {torch::sin(torch::arange(20, torch::kFloat) * (1 + at)), torch::tensor(at % 3)};
  }
  c10::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
  std::int64_t shift_;
};

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers = register_module(
      "layers", torch::nn::Sequential(torch::nn::Linear(20, 33), torch::nn::BatchNorm1d(33),
                                      torch::nn::Dropout(0.2), torch::nn::Linear(33, 3)));
};
TORCH_MODULE(Net);

struct Options {
  std::string save;
  double clip = 0;
  std::string drift;
  std::set<std::string> flips;
  std::set<std::string> deaths;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (argv[i] == std::string("--save")) options.save = argv[i + 1];
    if (argv[i] == std::string("--clip")) options.clip = std::atof(argv[i + 1]);
    if (argv[i] == std::string("--drift")) options.drift = argv[i + 1];
    if (argv[i] == std::string("--flip")) options.flips.insert(argv[i + 1]);
    if (argv[i] == std::string("--die")) options.deaths.insert(argv[i + 1]);
  }
  return options;
}

bool is_first() {
  const char* attempt = std::getenv("HOLDFAST_ATTEMPT");  // 0 in a spare.
  return attempt != nullptr && attempt == std::string("1");
}

void train(const Options& options, holdfast::Job& job) {
  const auto come_to = [&](const std::string& place) {
    const bool dies = options.deaths.count(std::to_string(job.rank()) + ":" + place) != 0;
    if (dies && is_first()) ::kill(::getpid(), SIGKILL);
  };
  torch::manual_seed(1);
  Net net;
  holdfast::State state(job, net, holdfast::Momentum{.learning_rate = 0.05});
  double sum = 0;  // Of the losses.
  state.keep("sum", sum);
  const auto step = [&](const auto& batch) {
    const std::string number = std::to_string(state.version() + 1);
    come_to(number);
    if (options.drift == std::to_string(job.rank()) + ":" + number) {
      const torch::NoGradGuard no_grad;
      net->parameters()[0].add_(1);
    }
    const auto loss = torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
    state.step(loss);
    sum += loss.template item<double>();
    if (options.flips.count(std::to_string(job.rank()) + ":" + number) != 0) {
      static_cast<unsigned char*>(net->parameters()[1].data_ptr())[5] ^= 4;
    }
  };
  come_to("before");
  for (auto& batch :
       state.steps(Points(96, 0),
                   {.epochs = 2, .batch = 8, .shuffle_seed = 7, .clip_norm = options.clip})) {
    step(batch);
  }
  come_to("between");
  net->eval();
  const auto some = torch::data::transforms::Stack<>().apply_batch(Points(30, 7).get_batch({1, 2}));
  const auto seen = net->forward(some.data).sum().item<double>();
  net->train();
  std::printf("rank %d: seen %a after step %" PRIu64 "\n", job.rank(), seen, state.version());
  std::fflush(stdout);
  for (auto& batch :
       state.steps(Points(64, 5),
                   {.epochs = 4, .batch = 8, .shuffle_seed = 8, .clip_norm = options.clip})) {
    step(batch);
  }
  come_to("after");
  state.save(options.save);
  std::printf("rank %d: sum %a, state %016" PRIx64 " after step %" PRIu64 "\n", job.rank(), sum,
              state.digest(), state.version());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto job = holdfast::init();
    train(parse(argc, argv), job);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "two_loops: %s\n", error.what());
    return 1;
  }
  return 0;
}
