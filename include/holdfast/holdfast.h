// Holdfast: training that loses at most the step in which a fault comes, and no bit.
//
//   auto job = holdfast::init();
//   Mlp net;
//   holdfast::State state(job, net, holdfast::Momentum{.learning_rate = 0.01, .momentum = 0.9});
//   auto data = Digits(directory);  // Any random-access data set of libtorch's.
//   for (auto& batch : state.steps(data, {.epochs = 10, .batch = 32, .shuffle_seed = 7})) {
//     auto loss = torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
//     state.step(loss);
//   }
//   state.save("final.safetensors");
//
// A process that replaces another runs the same lines: steps() finds its rank and its memory, and
// goes on after the last step that was made.
#pragma once

#include "holdfast/job.h"        // IWYU pragma: export
#include "holdfast/optimizer.h"  // IWYU pragma: export
#include "holdfast/state.h"      // IWYU pragma: export
#include "holdfast/version.h"    // IWYU pragma: export
