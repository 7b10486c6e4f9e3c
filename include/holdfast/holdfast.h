// Holdfast: training that loses at most the step in which a fault comes, and no bit.
//
//   #include <holdfast/holdfast.h>
//
//   struct Line : torch::data::datasets::Dataset<Line> {  // Or any random-access data set.
//     torch::data::Example<> get(std::size_t i) override {
//       const auto x = torch::full({1}, static_cast<double>(i) / 100);
//       return {x, 2 * x + 1};
//     }
//     c10::optional<std::size_t> size() const override { return 100; }
//   };
//
//   int main() {
//     auto job = holdfast::init();
//     torch::nn::Linear net(1, 1);  // Or any module.
//     holdfast::State state(job, net, holdfast::Momentum{.learning_rate = 0.01, .momentum = 0.9});
//     for (auto& batch : state.steps(Line(), {.epochs = 10, .batch = 10, .shuffle_seed = 7})) {
//       state.step(torch::mse_loss(net->forward(batch.data), batch.target));
//     }
//     state.save("final.safetensors");
//   }
//
// How it is built: README, "C++" (tests/installed builds and runs the lines above).
//
// A process that replaces another runs the same lines: steps() finds its rank and its memory, and
// goes on after the last step that was made.
#pragma once

#include "holdfast/job.h"        // IWYU pragma: export
#include "holdfast/optimizer.h"  // IWYU pragma: export
#include "holdfast/state.h"      // IWYU pragma: export
#include "holdfast/table.h"      // IWYU pragma: export
#include "holdfast/version.h"    // IWYU pragma: export
