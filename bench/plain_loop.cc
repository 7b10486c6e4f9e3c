// bench_plain_loop: the plain libtorch loop that bench/step_overhead.py sets beside ours: the same
// network, batch and optimizer (momentum), no Holdfast. Prints the median milliseconds of a step.
//
//   bench_plain_loop [steps, default 300] [batch, default 16]
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 300;
  const int batch = argc > 2 ? std::atoi(argv[2]) : 16;
  torch::set_num_threads(1);
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(784, 512), torch::nn::ReLU(),
                            torch::nn::Linear(512, 512), torch::nn::ReLU(),
                            torch::nn::Linear(512, 10));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  const auto images = torch::rand({1024, 784});
  const auto labels = torch::randint(10, {1024}, torch::kLong);
  std::vector<double> times;
  for (int step = 0; step < steps; ++step) {
    const auto began = std::chrono::steady_clock::now();
    const auto index = torch::randint(1024, {batch}, torch::kLong);
    optimizer.zero_grad();
    auto loss = torch::nn::functional::cross_entropy(net->forward(images.index_select(0, index)),
                                                     labels.index_select(0, index));
    loss.backward();
    optimizer.step();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
    if (step >= 50) times.push_back(took.count());
  }
  std::sort(times.begin(), times.end());
  std::printf("%.4f\n", times.empty() ? 0.0 : times[times.size() / 2]);
  return 0;
}
