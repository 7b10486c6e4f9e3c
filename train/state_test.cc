// The libtorch face with a single process. tests/chaos runs it with several, and kills them.
#include "holdfast/state.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "train/data.h"
#include "train/model.h"

namespace holdfast {
namespace {

constexpr std::uint64_t kSeed = 7;
constexpr std::size_t kBatch = 8;

// 100 samples of 20 numbers in 3 classes.
class Points : public torch::data::datasets::Dataset<Points> {
 public:
  torch::data::Example<> get(std::size_t i) override {
    const auto at = static_cast<std::int64_t>(i);
    return {torch::sin(torch::arange(20, torch::kFloat) * (1 + at)), torch::tensor(at % 3)};
  }
  c10::optional<std::size_t> size() const override { return 100; }
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool rich) : rich_(rich) {
    torch::manual_seed(1);
    first = register_module("first", torch::nn::Linear(20, 33));
    norm = register_module("norm", torch::nn::BatchNorm1d(33));
    last = register_module("last", torch::nn::Linear(33, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = first->forward(x);
    if (makes_layers_late) register_module("late", torch::nn::Linear(2, 2));
    if (rich_) x = torch::dropout(norm->forward(x), 0.3, is_training());
    return last->forward(torch::relu(x));
  }
  bool rich_;
  bool makes_layers_late = false;
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

torch::Tensor loss_of(Net& net, const torch::data::Example<>& batch) {
  return torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
}

StepsOptions until(std::uint64_t steps) {
  return {.epochs = 100, .batch = kBatch, .shuffle_seed = kSeed, .max_steps = steps};
}

bool same_bytes(const torch::Tensor& a, const torch::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

Net trained(const Optimizer& optimizer, std::uint64_t steps, double clip_norm = 0) {
  auto job = init();
  Net net(false);
  State state(job, net, optimizer);
  Points points;
  auto options = until(steps);
  options.clip_norm = clip_norm;
  for (auto& batch : state.steps(points, options)) state.step(loss_of(net, batch));
  return net;
}

// Trains the same net with torch's own optimizer. Only the order of samples is Holdfast's.
template <class TorchOptimizer, class TorchOptions>
Net trained_plainly(const TorchOptions& options, std::uint64_t steps, double clip_norm = 0) {
  Net net(false);
  TorchOptimizer optimizer(net->parameters(), options);
  Points points;
  const train::Sharding sharding{.samples = 100, .batch = kBatch, .ranks = 1, .seed = kSeed};
  for (std::uint64_t n = 0; n < steps; ++n) {
    const auto per_epoch = sharding.steps_per_epoch();
    const auto batch = torch::data::transforms::Stack<>().apply_batch(
        points.get_batch(sharding.indices(n / per_epoch, n % per_epoch, 0)));
    optimizer.zero_grad();
    loss_of(net, batch).backward();
    for (auto& p : net->parameters()) {  // Torch would not update a parameter without gradient.
      if (!p.grad().defined()) p.mutable_grad() = torch::zeros_like(p);
    }
    if (clip_norm > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), clip_norm);
    optimizer.step();
  }
  return net;
}

// Torch's vectorised kernels fuse multiply and add, and Holdfast's round twice, so the last bits
// differ. include/holdfast/optimizer.h documents the tolerances.
void expect_near(Net& ours, Net& plain, double tolerance) {
  const auto a = ours->parameters();
  const auto b = plain->parameters();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_LT((a[i] - b[i]).abs().max().item<double>(), tolerance) << "parameter " << i;
  }
}

// Weight decays: none, and one that moves the parameters by far more than the tolerance.
class AsTorch : public testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Decays, AsTorch, testing::Values(0.0, 0.1));

TEST_P(AsTorch, Sgd) {
  const double decay = GetParam();
  auto ours = trained(Sgd{.learning_rate = 0.1, .weight_decay = decay}, 30);
  const auto options = torch::optim::SGDOptions(0.1).weight_decay(decay);
  auto plain = trained_plainly<torch::optim::SGD>(options, 30);
  expect_near(ours, plain, 2e-6);
}

TEST_P(AsTorch, Momentum) {
  const double decay = GetParam();
  auto ours = trained(Momentum{.learning_rate = 0.05, .momentum = 0.9, .weight_decay = decay}, 30);
  const auto options = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(decay);
  auto plain = trained_plainly<torch::optim::SGD>(options, 30);
  expect_near(ours, plain, 5e-6);
}

TEST_P(AsTorch, Adam) {
  const double decay = GetParam();
  auto ours = trained(Adam{.learning_rate = 0.001, .weight_decay = decay}, 30);
  const auto options = torch::optim::AdamOptions(0.001).weight_decay(decay);
  auto plain = trained_plainly<torch::optim::Adam>(options, 30);
  expect_near(ours, plain, 2e-5);
}

TEST_P(AsTorch, AdamW) {
  const double decay = GetParam();
  auto ours = trained(AdamW{.learning_rate = 0.001, .weight_decay = decay}, 30);
  const auto options = torch::optim::AdamWOptions(0.001).weight_decay(decay);
  auto plain = trained_plainly<torch::optim::AdamW>(options, 30);
  expect_near(ours, plain, 2e-5);
}

// Clips to norms such that all, some or no steps are clipped.
TEST(State, ClipsGradientsAsTorchDoes) {
  const Sgd ours{.learning_rate = 0.1};
  const torch::optim::SGDOptions options(0.1);
  for (const double clip_norm : {0.1, 0.5, 50.0}) {
    auto clipped = trained(ours, 30, clip_norm);
    auto plain = trained_plainly<torch::optim::SGD>(options, 30, clip_norm);
    expect_near(clipped, plain, 2e-6);
    const bool does = !same_bytes(clipped->last->weight, trained(ours, 30)->last->weight);
    EXPECT_EQ(does, clip_norm < 50) << clip_norm;
  }
}

TEST(State, DecaysAsFarAsTheComparisonWithTorchSees) {
  const Net none = trained(AdamW{.learning_rate = 0.001, .weight_decay = 0}, 30);
  const Net some = trained(AdamW{.learning_rate = 0.001, .weight_decay = 0.1}, 30);
  const auto moved = (none->last->weight - some->last->weight).abs().max().item<double>();
  EXPECT_GT(moved, 10 * 2e-5);
}

TEST(State, AsksTheScheduleForEveryStep) {
  std::vector<std::uint64_t> asked;
  Sgd sgd;
  sgd.schedule = [&](std::uint64_t n) {
    asked.push_back(n);
    return 0.0;
  };
  auto net = trained(sgd, 3);
  EXPECT_EQ(asked, (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_TRUE(same_bytes(net->last->weight, Net(false)->last->weight));
}

// The digest after a run with dropout, batch norm and a kept value, whose loop is left by `break`
// at the steps `breaks` and entered again.
std::uint64_t digest_with(const std::vector<std::uint64_t>& breaks) {
  auto job = init();
  Net net(true);
  State state(job, net, Momentum{.learning_rate = 0.05});
  double sum = 0;
  state.keep("sum", sum);
  Points points;
  for (const auto at : breaks) {
    torch::manual_seed(at);  // What user code does to the generator between steps has no effect.
    for (auto& batch : state.steps(points, until(40))) {
      const auto loss = loss_of(net, batch);
      sum += loss.item<double>();
      state.step(loss);
      if (state.version() == at) break;
    }
    EXPECT_EQ(state.version(), at);
  }
  for (auto& batch : state.steps(points, until(40))) {
    const auto loss = loss_of(net, batch);
    state.step(loss);
    sum += loss.item<double>();
  }
  EXPECT_EQ(state.version(), 40U);
  return state.digest();
}

TEST(State, RepeatsAStepThatWasGivenUpWithTheSameBits) {
  const auto whole = digest_with({});
  EXPECT_EQ(digest_with({0, 17, 17, 30}), whole);
  EXPECT_EQ(digest_with({39}), whole);
}

TEST(State, CountsEpochsAndStepsOverAllLoops) {
  auto job = init();
  Net net(false);
  State state(job, net, Sgd{});
  Points points;
  std::uint64_t bodies = 0;
  const auto run = [&](std::uint64_t epochs) {
    for (auto& batch : state.steps(points, {.epochs = epochs, .batch = 30})) {
      state.step(loss_of(net, batch));
      ++bodies;
    }
  };
  run(1);
  EXPECT_EQ(bodies, 3U);
  run(1);
  EXPECT_EQ(bodies, 3U);
  run(3);
  EXPECT_EQ(bodies, 9U);
  EXPECT_EQ(state.epoch(), 3U);
  EXPECT_EQ(state.version(), 9U);
}

TEST(State, TakesABatchedDataSetToo) {
  const auto plain = trained(Sgd{.learning_rate = 0.1}, 30);
  auto job = init();
  EXPECT_THROW((void)init(), Failure);  // One job at a time.
  Net net(false);
  State state(job, net, Sgd{.learning_rate = 0.1});
  auto stacked = Points().map(torch::data::transforms::Stack<>());
  for (auto& batch : state.steps(stacked, until(30))) state.step(loss_of(net, batch));
  EXPECT_TRUE(same_bytes(net->last->weight, plain->last->weight));
}

// With a batch of 8, an epoch has 12 steps with 100 samples, and 3 steps with 30.
class FewPoints : public Points {
 public:
  c10::optional<std::size_t> size() const override { return 30; }
};

TEST(State, RefusesADataSetThatTheEpochUnderWayHasOutrun) {
  auto job = init();
  Net net(false);
  State state(job, net, Sgd{});
  for (auto& batch : state.steps(Points(), until(2))) state.step(loss_of(net, batch));
  for (auto& batch : state.steps(FewPoints(), until(3))) state.step(loss_of(net, batch));
  EXPECT_EQ(state.epoch(), 1U);
  for (auto& batch : state.steps(Points(), until(6))) state.step(loss_of(net, batch));
  for (auto& batch : state.steps(FewPoints(), until(6)))
    ADD_FAILURE() << batch.target;  // The epochs are made already: there is no step.
  try {
    for (auto& batch : state.steps(FewPoints(), until(7))) ADD_FAILURE() << batch.target;
    ADD_FAILURE() << "no failure";
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("epoch 1 has had 3 steps"), std::string::npos)
        << failure.what();
  }
}

TEST(State, SavesWhatTheLastStepLeft) {
  auto job = init();
  Net net(true);
  State state(job, net, Adam{});
  std::uint64_t mine = 0;
  state.keep("mine", mine);
  Points points;
  for (auto& batch : state.steps(points, until(4))) {
    state.step(loss_of(net, batch));
    ++mine;
  }
  const auto path =
      std::filesystem::temp_directory_path() / ("holdfast-state-" + std::to_string(::getpid()));
  state.save(path);
  std::ifstream stream(path, std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), {}};
  std::filesystem::remove(path);
  for (const char* name :
       {"\"first.weight\"", "\"norm.running_mean\"", "\"norm.num_batches_tracked\"",
        "\"optimizer.last.bias.exp_avg_sq\"", "\"kept.mine\"", "\"holdfast.version\":\"4\""}) {
    EXPECT_NE(file.find(name), std::string::npos) << name;
  }
  const auto holds = [&](const void* data, std::size_t bytes) {
    return file.find(std::string(static_cast<const char*>(data), bytes)) != std::string::npos;
  };
  for (const auto& tensor : {net->first->weight, net->last->bias, net->norm->running_var}) {
    EXPECT_TRUE(holds(tensor.data_ptr(), tensor.nbytes()));
  }
  EXPECT_TRUE(holds(&mine, sizeof mine));
}

// Without protection the arena gets no private bytes at a step's end. save() writes those of that
// step all the same.
TEST(State, SavesTheSameWithoutProtection) {
  const auto path =
      std::filesystem::temp_directory_path() / ("holdfast-state-" + std::to_string(::getpid()));
  const auto saved = [&](const char* protect) {
    ::setenv("HOLDFAST_PROTECT", protect, 1);
    auto job = init();
    ::unsetenv("HOLDFAST_PROTECT");
    Net net(true);
    State state(job, net, Momentum{});
    std::uint64_t mine = 0;
    state.keep("mine", mine);
    Points points;
    for (auto& batch : state.steps(points, until(6))) {
      if (state.version() == 5) break;
      state.step(loss_of(net, batch));
      ++mine;
    }
    EXPECT_EQ(mine, 5U);
    state.save(path);
    std::ifstream stream(path, std::ios::binary);
    std::string file{std::istreambuf_iterator<char>(stream), {}};
    std::filesystem::remove(path);
    return std::pair(file, state.digest());
  };
  EXPECT_TRUE(saved("0") == saved("1"));  // Not EXPECT_EQ, which would print the bytes.
}

TEST(State, GivesTheModuleItsValuesBackAtItsEnd) {
  Net net(false);
  torch::Tensor before;
  {
    auto job = init();
    State state(job, net, Sgd{});
    Points points;
    for (auto& batch : state.steps(points, until(2))) state.step(loss_of(net, batch));
    before = net->last->weight.detach().clone();
  }
  EXPECT_TRUE(same_bytes(net->last->weight, before));
  loss_of(net, torch::data::transforms::Stack<>().apply_batch(Points().get_batch({1, 2, 3})))
      .backward();
  EXPECT_TRUE(net->last->weight.grad().defined());
}

TEST(State, LeavesReadableWhatTheUserKeepsOfParametersAndGradients) {
  Net net(false);
  torch::Tensor gradient;
  torch::Tensor values;
  torch::Tensor gradient_before;
  torch::Tensor values_before;
  {
    auto job = init();
    State state(job, net, Sgd{});
    Points points;
    for (auto& batch : state.steps(points, until(2))) {
      state.step(loss_of(net, batch));
      gradient = net->last->weight.grad();
    }
    values = net->last->weight.detach();
    values_before = values.clone();
    gradient_before = gradient.clone();
  }
  EXPECT_TRUE(same_bytes(values, values_before));
  EXPECT_TRUE(same_bytes(gradient, gradient_before));
}

TEST(State, LeavesWhatGotNoGradientAlone) {
  const auto net = trained(Sgd{.learning_rate = 0.1}, 3);  // The forward pass does not use `norm`.
  EXPECT_TRUE(same_bytes(net->norm->weight, torch::ones(33)));
}

// The Failure that comes when `change` changes the module without the State's knowledge, after
// `before` steps.
std::string failure_of(Net net, std::uint64_t before, const std::function<void(Net&)>& change) {
  auto job = init();
  State state(job, net, Sgd{});
  Points points;
  try {
    for (auto& batch : state.steps(points, until(before))) state.step(loss_of(net, batch));
    change(net);
    for (auto& batch : state.steps(points, until(before + 2))) state.step(loss_of(net, batch));
  } catch (const Failure& failure) {
    return failure.what();
  }
  return {};
}

TEST(State, RefusesToTrainInVainWhatIsNoLongerInItsPlace) {
  const std::string file = testing::TempDir() + "pretrained.pt";
  torch::save(Net(false), file);
  for (const std::uint64_t before : {std::uint64_t{0}, std::uint64_t{2}}) {
    EXPECT_EQ(failure_of(Net(false), before, [&](Net& net) { torch::load(net, file); }),
              "parameter 'first.weight' lies in other memory than its State gave it, as after "
              "torch::load() or Module::to(), and would not be trained: do that before the first "
              "call of steps(), version(), epoch() or digest()");
  }
  std::filesystem::remove(file);
  Net frozen(false);
  frozen->last->bias.requires_grad_(false);
  EXPECT_EQ(failure_of(frozen, 1, [](Net& net) { net->last->bias.requires_grad_(true); }),
            "parameter 'last.bias' requires a gradient now and did not when the State was made, so "
            "it would not be trained: let it require one by then");
}

TEST(State, RefusesWhatHasComeToTheModuleSinceItWasMade) {
  const auto layer = [](Net& net) { net->register_module("late", torch::nn::Linear(2, 2)); };
  EXPECT_EQ(failure_of(Net(false), 1, layer),
            "parameter 'late.weight' has come to the module since the State was made, and would "
            "not be trained: make all layers before");
  Net lazy(true);
  lazy->makes_layers_late = true;
  EXPECT_EQ(failure_of(lazy, 0, [](Net&) {}), failure_of(Net(false), 1, layer));
  const auto buffer = [](Net& net) { net->register_buffer("late", torch::zeros({2})); };
  EXPECT_EQ(failure_of(Net(false), 1, buffer),
            "buffer 'late' is not the tensor that it was when the State was made, and would not be "
            "kept: change it in place, by copy_() say");
  EXPECT_EQ(failure_of(Net(false), 1, [](Net& net) { net->norm->running_mean.resize_({40}); }),
            "'norm.running_mean' has 160 bytes, and had 132 before the first step: its State keeps "
            "no more, so give it its full size by then");
  EXPECT_EQ(failure_of(Net(true), 1, [](Net& net) { net->norm->running_mean.fill_(1); }), "");
}

TEST(Model, KnowsWhetherRanksHaveDifferentValues) {
  Net net(false);
  EXPECT_TRUE(train::Model(net.ptr()).has_own());
  const auto linear = std::make_shared<torch::nn::LinearImpl>(2, 2);
  linear->bias.requires_grad_(false);  // A private tensor that is the same on all ranks.
  train::Model model(linear);
  EXPECT_FALSE(model.has_own());
  std::byte value{};
  model.keep({"sum", &value, 1});
  EXPECT_TRUE(model.has_own());
}

TEST(State, RefusesWhatCanNotBeRight) {
  auto job = init();
  Net net(false);
  State state(job, net, Sgd{});
  Points points;
  double kept = 0;
  state.keep("kept", kept);
  EXPECT_THROW(state.keep("kept", kept), Failure);
  EXPECT_THROW(state.step(torch::ones({})), Failure);
  EXPECT_THROW((void)state.steps(points, {.batch = 101}).begin(), Failure);
  EXPECT_THROW((void)state.steps(points, {.clip_norm = -1}).begin(), Failure);
  const auto two_steps = [&] {
    for (auto& batch : state.steps(points, until(1))) {
      const auto loss = loss_of(net, batch);
      state.step(loss);
      state.step(loss);
    }
  };
  EXPECT_THROW(two_steps(), Failure);
  const auto no_step = [&] {
    for (auto& batch : state.steps(points, until(1))) (void)batch;
  };
  EXPECT_THROW(no_step(), Failure);
  const auto goes_on = [&] {  // Its gradients would be missing, or those of another step.
    for (auto& batch : state.steps(points, until(1))) {
      EXPECT_THROW(state.step(loss_of(net, batch).detach()), c10::Error);
    }
  };
  EXPECT_THROW(goes_on(), Failure);
  EXPECT_EQ(state.version(), 0U);
  EXPECT_THROW(state.keep("late", kept), Failure);
  Net doubles(false);
  doubles->to(torch::kDouble);
  EXPECT_THROW(State(job, doubles, Sgd{}), Failure);
}

}  // namespace
}  // namespace holdfast
