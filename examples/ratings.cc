// ratings: learns who likes which film, with two tables that parameter servers keep.
//
//   msrun --worker_num=2 --local_worker_num=2 --server_num=2 --join=True ratings --data
//   ml-100k.inter
//
// The file has a line for each rating: user, film, rating, time, with tabs between, and a line of
// names first (MovieLens-100K as RecBole has it: docs/parameter-server.md says where it is and what
// its licence allows). The rating is guessed as a constant + what the user and the film add + the
// product of their vectors. Every tenth rating is held out. At the end each rank prints the error
// on those, and a digest of all rows: the same whatever has died meanwhile.
#include <torch/torch.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "holdfast/holdfast.h"

namespace {

constexpr std::uint32_t kValues = 17;  // The first is a bias.

struct Ratings : torch::data::datasets::Dataset<Ratings> {
  explicit Ratings(const std::string& path) {
    std::ifstream file(path);
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    std::int64_t user = 0;
    std::int64_t film = 0;
    float rating = 0;
    float time = 0;
    for (int line = 0; file >> user >> film >> rating >> time; ++line) {
      most_user = std::max(most_user, user);
      most_film = std::max(most_film, film);
      auto& part = line % 10 == 9 ? held_out : learned;
      part.push_back({torch::tensor({user, film}), torch::tensor(rating)});
    }
  }
  torch::data::Example<> get(std::size_t i) override { return learned[i]; }
  c10::optional<std::size_t> size() const override { return learned.size(); }

  std::vector<torch::data::Example<>> learned, held_out;
  std::int64_t most_user = 0, most_film = 0;
};

torch::Tensor guess(torch::nn::Linear& constant, holdfast::Table& users, holdfast::Table& films,
                    const torch::Tensor& pairs) {
  const auto user = users.pull(pairs.select(1, 0));
  const auto film = films.pull(pairs.select(1, 1));
  const auto product = (user.slice(1, 1) * film.slice(1, 1)).sum(1);
  const auto biases = user.select(1, 0) + film.select(1, 0);
  return constant->forward(torch::ones({pairs.size(0), 1})).squeeze(1) + biases + product;
}

std::uint64_t digest_of(const torch::Tensor& rows) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  const auto* bytes = static_cast<const unsigned char*>(rows.contiguous().data_ptr());
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows.nbytes()); ++i) {
    hash = (hash ^ bytes[i]) * 1099511628211U;
  }
  return hash;
}

struct Result {
  double error = 0;
  std::uint64_t rows = 0;
};

int run(const std::string& path, std::uint64_t epochs) {
  auto job = holdfast::init();
  Ratings ratings(path);
  if (ratings.learned.empty()) {
    std::fprintf(stderr, "ratings: there are no ratings in %s\n", path.c_str());
    return 2;
  }
  torch::manual_seed(7);
  torch::nn::Linear constant(1, 1);
  holdfast::State state(job, constant, holdfast::Sgd{.learning_rate = 0.05});
  const holdfast::TableOptions options{
      .values = kValues, .learning_rate = 0.1, .deviation = 0.05, .seed = 7};
  const auto named = [&](const char* name, std::int64_t rows) {
    auto its = options;
    its.name = name;
    its.rows = rows;
    return its;
  };
  holdfast::Table users(state, named("users", ratings.most_user + 1));
  holdfast::Table films(state, named("films", ratings.most_film + 1));
  // What a body finds out counts once its step is made: a step in which a fault comes is repeated.
  Result result;
  state.keep("result", result);
  const holdfast::StepsOptions steps{.epochs = epochs, .batch = 256, .shuffle_seed = 7};
  const auto ranks = static_cast<std::size_t>(job.world_size());
  const std::uint64_t last = epochs * (ratings.learned.size() / (steps.batch * ranks));
  for (auto& batch : state.steps(ratings, steps)) {
    if (state.version() + 1 == last) {  // Before the last step: rows are read within steps only.
      const torch::NoGradGuard none;
      const auto test = torch::data::transforms::Stack<>().apply_batch(ratings.held_out);
      const auto error = torch::mse_loss(guess(constant, users, films, test.data), test.target);
      result.error = error.sqrt().item<double>();
      result.rows = digest_of(torch::cat({users.pull(torch::arange(ratings.most_user + 1)),
                                          films.pull(torch::arange(ratings.most_film + 1))}));
    }
    state.step(torch::mse_loss(guess(constant, users, films, batch.data), batch.target));
  }
  std::printf("rank %d: after %" PRIu64 " steps the error is %.4f, the rows are %016" PRIx64 "\n",
              job.rank(), last - 1, result.error, result.rows);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || std::strcmp(argv[1], "--data") != 0) {
    std::fprintf(stderr, "usage: ratings --data FILE [EPOCHS]\n");
    return 2;
  }
  return run(argv[2], argc > 3 ? std::stoull(argv[3]) : 5);
}
