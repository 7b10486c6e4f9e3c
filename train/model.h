// Model: the tensors of a module and the user's kept values, and where an arena has them:
// parameters in place, all else packed into the rank's private bytes.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arena/arena.h"

namespace holdfast::train {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
  std::size_t bytes = 0;  // The tensor's size when the arena was opened.
};

// A tensor over a range of the arena, which stays mapped as long as any tensor shares this memory.
torch::Tensor tensor_in(const arena::Arena& arena, std::span<float> range,
                        torch::IntArrayRef shape);

struct Kept {
  std::string name;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

class Model {
 public:
  // Throws Failure for a module without trainable parameters, or with one that can not be kept.
  explicit Model(std::shared_ptr<torch::nn::Module> module);

  void keep(Kept value);  // Throws Failure for a name that is taken.

  [[nodiscard]] arena::Layout layout(arena::Optimizer optimizer) const;
  // Copies the parameters into a fresh arena.
  void write_parameters(arena::Arena& arena) const;
  // adopt() moves the parameters' memory into the arena; release() gives them memory of their own.
  void adopt(arena::Arena& arena);
  void release();
  // One sentence about a tensor that would be neither trained nor kept, because the user has
  // replaced it; empty if there is none. `new_ones`: looks also for tensors that were added to the
  // module, which takes a walk through all of it.
  [[nodiscard]] std::string strayed(arena::Arena& arena, bool new_ones) const;
  // Whether something in the private bytes may differ between ranks: buffers or kept values.
  // Parameters without gradient are the same on all ranks.
  [[nodiscard]] bool has_own() const;

  // Buffers, parameters without gradient and kept values, to and from private bytes.
  void pack(std::span<std::byte> bytes) const;
  void unpack(std::span<const std::byte> bytes) const;

  [[nodiscard]] const std::vector<NamedTensor>& parameters() const { return parameters_; }
  // In the order in which they are packed, kept values last.
  [[nodiscard]] const std::vector<NamedTensor>& private_tensors() const { return private_; }
  [[nodiscard]] const std::vector<Kept>& kept() const { return kept_; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> private_;
  std::size_t frozen_ = 0;  // How many of the first of private_ are parameters, not buffers.
  std::vector<Kept> kept_;
};

}  // namespace holdfast::train
