// mnist: trains a small network on handwritten digits, and survives the death of any process.
//
//   msrun --worker_num=4 --local_worker_num=4 --join=True mnist --data DIR
//
// trains with four workers, `mnist --data DIR` with one.
//
// All that Holdfast asks of a training program is in train(); the rest is options and printing.
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "digits.h"
#include "holdfast/holdfast.h"

namespace {

struct Options {
  std::string data;
  std::uint64_t epochs = 10;
  std::uint64_t steps = std::numeric_limits<std::uint64_t>::max();
  std::size_t batch = 32;
  std::uint64_t seed = 7;
  std::string optimizer = "momentum";
  std::string model = "mlp";
  double clip = 0;
  double dropout = 0;
  bool batch_norm = false;
  std::string save;
};

constexpr const char* kUsage =
    "usage: mnist --data DIR [--epochs N] [--steps N] [--batch B] [--seed S]\n"
    "             [--optimizer sgd|momentum|adam|adamw] [--model linear|mlp|deep]\n"
    "             [--clip NORM] [--dropout P] [--batch-norm] [--save FILE]\n";

struct MlpImpl : torch::nn::Module {
  MlpImpl(const std::vector<std::int64_t>& widths, double dropout, bool batch_norm) {
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      const std::string number = std::to_string(i + 1);
      layers->push_back("linear" + number, torch::nn::Linear(widths[i], widths[i + 1]));
      if (i + 2 == widths.size()) break;
      if (batch_norm) layers->push_back("norm" + number, torch::nn::BatchNorm1d(widths[i + 1]));
      layers->push_back("relu" + number, torch::nn::ReLU());
      if (dropout > 0) layers->push_back("dropout" + number, torch::nn::Dropout(dropout));
    }
    register_module("layers", layers);
  }
  torch::Tensor forward(const torch::Tensor& images) { return layers->forward(images); }

  torch::nn::Sequential layers;
};
TORCH_MODULE(Mlp);

// Of this rank's samples in an epoch. Kept by the State, so that faults do not change it.
struct Progress {
  std::uint64_t epoch = 0;
  std::uint64_t steps = 0;
  double loss = 0;
};

const std::map<std::string, std::vector<std::int64_t>> kModels = {
    {"linear", {784, 10}}, {"mlp", {784, 512, 512, 10}}, {"deep", {784, 512, 5120, 5120, 512, 10}}};

const std::map<std::string, holdfast::Optimizer> kOptimizers = {
    {"sgd", holdfast::Sgd{.learning_rate = 0.05}},
    {"momentum", holdfast::Momentum{.learning_rate = 0.01, .momentum = 0.9}},
    {"adam", holdfast::Adam{.learning_rate = 0.001}},
    {"adamw", holdfast::AdamW{.learning_rate = 0.001}}};

double accuracy(Mlp& net, const Digits& test) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto right = net->forward(test.images()).argmax(1).eq(test.labels()).sum().item<double>();
  net->train();
  return 100 * right / static_cast<double>(*test.size());
}

void train(const Options& options, holdfast::Job& job) {
  Digits data(options.data, Digits::Part::kTraining);
  const Digits test(options.data, Digits::Part::kTest);
  const std::string source = describe_digits(options.data);

  torch::manual_seed(options.seed);
  Mlp net(kModels.at(options.model), options.dropout, options.batch_norm);
  holdfast::State state(job, net, kOptimizers.at(options.optimizer));
  Progress progress;
  state.keep("progress", progress);

  const auto report = [&] {
    if (progress.steps == 0) return;
    std::printf("rank %d of %d: epoch %" PRIu64
                ": loss %.6f, test accuracy %.2f %% on %zu images (%s)\n",
                job.rank(), job.world_size(), progress.epoch + 1,
                progress.loss / static_cast<double>(progress.steps), accuracy(net, test),
                *test.size(), source.c_str());
    std::fflush(stdout);
  };

  for (auto& batch : state.steps(data, {.epochs = options.epochs,
                                       .batch = options.batch,
                                       .shuffle_seed = options.seed,
                                       .max_steps = options.steps,
                                       .clip_norm = options.clip})) {
    if (state.epoch() != progress.epoch) {
      report();
      progress = {.epoch = state.epoch()};
    }
    auto loss = torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
    state.step(loss);
    progress.loss += loss.item<double>();
    ++progress.steps;
  }
  report();
  if (!options.save.empty()) state.save(options.save);
  std::printf("rank %d of %d: done after step %" PRIu64 "; state %016" PRIx64 "\n", job.rank(),
              job.world_size(), state.version(), state.digest());
  std::fflush(stdout);  // Before ~State puts this rank's end on record: nobody will say it again.
}

[[noreturn]] void misuse(const std::string& what) {
  std::fprintf(stderr, "mnist: %s\n%s", what.c_str(), kUsage);
  std::exit(2);
}

template <class T>
T number(const std::string& name, const std::string& text) {
  try {
    std::size_t end = 0;
    T value{};
    if constexpr (std::is_floating_point_v<T>) {
      value = std::stod(text, &end);
    } else if (text.find('-') == std::string::npos) {  // Which stoull takes for a huge number.
      value = std::stoull(text, &end);
    }
    if (end == text.size() && end != 0 && value >= T{}) return value;
  } catch (const std::logic_error&) {
  }
  misuse(name + " is '" + text + "', which is not a number that it can be");
}

template <class Table>
std::string one_of(const Table& table, const std::string& name, const std::string& text) {
  if (table.count(text) != 0) return text;
  std::string allowed;
  for (const auto& entry : table) allowed += (allowed.empty() ? "" : ", ") + entry.first;
  misuse(name + " is '" + text + "'; allowed are " + allowed);
}

// Found out before the training, not after it.
void check_save(const std::string& file) {
  const std::filesystem::path path(file);
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (!std::filesystem::is_directory(folder)) {
    misuse("--save is '" + file + "', but there is no folder " + folder.string() + ": make it");
  }
  if (std::filesystem::is_directory(path)) misuse("--save is '" + file + "', which is a folder");
  // A file without a name, which a kill leaves nothing of, where the file system has such.
  int made = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (made < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string trial = folder / ".mnist-XXXXXX";
    made = ::mkstemp(trial.data());
    if (made >= 0) ::unlink(trial.c_str());
  }
  if (made < 0) {
    misuse("--save is '" + file + "', but " + folder.string() +
           " can not be written to: " + std::strerror(errno));
  }
  ::close(made);
}

Options parse(const std::vector<std::string>& words) {
  Options o;
  using Set = std::function<void(const std::string& name, const std::string& value)>;
  const std::map<std::string, Set> options = {
      {"--data", [&](auto&, auto& v) { o.data = v; }},
      {"--epochs", [&](auto& n, auto& v) { o.epochs = number<std::uint64_t>(n, v); }},
      {"--steps", [&](auto& n, auto& v) { o.steps = number<std::uint64_t>(n, v); }},
      {"--batch", [&](auto& n, auto& v) { o.batch = number<std::size_t>(n, v); }},
      {"--seed", [&](auto& n, auto& v) { o.seed = number<std::uint64_t>(n, v); }},
      {"--optimizer", [&](auto& n, auto& v) { o.optimizer = one_of(kOptimizers, n, v); }},
      {"--model", [&](auto& n, auto& v) { o.model = one_of(kModels, n, v); }},
      {"--clip", [&](auto& n, auto& v) { o.clip = number<double>(n, v); }},
      {"--dropout", [&](auto& n, auto& v) { o.dropout = number<double>(n, v); }},
      {"--save", [&](auto& n, auto& v) {
         if (v.empty()) misuse(n + " is ''; it wants a file");
         o.save = v;
       }}};
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--help" || words[i] == "-h") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    if (words[i] == "--batch-norm") {
      o.batch_norm = true;
      continue;
    }
    const auto found = options.find(words[i]);
    if (found == options.end()) misuse("unknown option '" + words[i] + "'");
    if (i + 1 == words.size()) misuse(words[i] + " wants a value");
    found->second(words[i], words[i + 1]);
    ++i;
  }
  if (o.data.empty()) misuse("--data DIR is missing: the folder with the digits");
  if (o.batch == 0) misuse("--batch is 0; a step takes at least 1 sample");
  if (o.batch == 1 && o.batch_norm) misuse("--batch-norm wants a --batch of at least 2 samples");
  if (o.dropout >= 1) misuse("--dropout is not below 1");
  if (!o.save.empty()) check_save(o.save);
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse({argv + 1, argv + argc});
    auto job = holdfast::init();
    train(options, job);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "mnist: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mnist: %s\n", error.what());
    return 1;
  }
  return 0;
}
