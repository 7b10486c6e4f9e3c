// Digits: handwritten digits from files in MNIST's format, as a data set of libtorch's.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <string>

// Unlike torch::data::datasets::MNIST it takes any number of images, gives whole batches, and says
// what is wrong with a file.
class Digits : public torch::data::datasets::BatchDataset<Digits, torch::data::Example<>> {
 public:
  enum class Part { kTraining, kTest };

  // Throws std::runtime_error that names the file and says what to do.
  Digits(const std::string& directory, Part part);

  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  c10::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(images_.size(0));
  }

  const torch::Tensor& images() const { return images_; }  // [n, 784], float, 0 to 1
  const torch::Tensor& labels() const { return labels_; }  // [n], int64

 private:
  torch::Tensor images_;
  torch::Tensor labels_;
};

// What the digits of a folder are, in words: the first line of its file SOURCE.
std::string describe_digits(const std::string& directory);
