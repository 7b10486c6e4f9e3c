#include "train/model.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "holdfast/job.h"

namespace holdfast::train {
namespace {

void check_kind(const NamedTensor& t) {
  if (!t.tensor.is_cpu() || t.tensor.is_sparse()) {
    throw Failure(cat("'", t.name, "' is not a dense tensor on the CPU, and no other can be kept"));
  }
}

void copy_out(const torch::Tensor& tensor, std::byte* to) {
  const torch::Tensor values = tensor.detach().contiguous();
  std::memcpy(to, values.data_ptr(), values.nbytes());
}

void copy_in(const torch::Tensor& tensor, const std::byte* from) {
  torch::Tensor values = tensor.detach();
  if (values.is_contiguous()) {
    std::memcpy(values.data_ptr(), from, values.nbytes());
  } else {
    auto* bytes = const_cast<std::byte*>(from);  // from_blob has no const form; it is only read.
    values.copy_(torch::from_blob(bytes, values.sizes(), values.options()));
  }
}

}  // namespace

torch::Tensor tensor_in(const arena::Arena& arena, std::span<float> range,
                        torch::IntArrayRef shape) {
  return torch::from_blob(
      range.data(), shape, [memory = arena.memory()](void*) {}, torch::kFloat);
}

Model::Model(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {
  std::set<const void*> seen;  // A shared parameter has several names and counts once.
  for (const auto& item : module_->named_parameters()) {
    NamedTensor parameter{item.key(), item.value()};
    if (!seen.insert(parameter.tensor.unsafeGetTensorImpl()).second) continue;
    check_kind(parameter);
    if (!parameter.tensor.requires_grad()) {
      private_.push_back(std::move(parameter));
      continue;
    }
    if (parameter.tensor.scalar_type() != torch::kFloat) {
      throw Failure(cat("parameter '", parameter.name,
                        "' is not float32: call module->to("
                        "torch::kFloat) before the State is made"));
    }
    parameters_.push_back(std::move(parameter));
  }
  if (parameters_.empty()) {
    throw Failure("the module has no parameter that requires a gradient: nothing can be trained");
  }
  frozen_ = private_.size();
  for (const auto& item : module_->named_buffers()) {
    NamedTensor buffer{item.key(), item.value()};
    if (!buffer.tensor.defined() || !seen.insert(buffer.tensor.unsafeGetTensorImpl()).second) {
      continue;
    }
    check_kind(buffer);
    private_.push_back(std::move(buffer));
  }
}

void Model::keep(Kept value) {
  const auto same = [&](const auto& other) { return other.name == value.name; };
  if (std::any_of(kept_.begin(), kept_.end(), same)) {
    throw Failure(cat("two values are kept under the name '", value.name, "': give each its own"));
  }
  kept_.push_back(std::move(value));
}

arena::Layout Model::layout(arena::Optimizer optimizer) const {
  arena::Layout layout;
  layout.optimizer = optimizer;
  for (const auto& p : parameters_) {
    layout.parameters.push_back({p.name, static_cast<std::uint64_t>(p.tensor.numel())});
  }
  for (const auto& t : private_) layout.private_bytes += t.tensor.nbytes();
  for (const auto& k : kept_) layout.private_bytes += k.bytes;
  return layout;
}

void Model::write_parameters(arena::Arena& arena) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    copy_out(parameters_[i].tensor, reinterpret_cast<std::byte*>(arena.parameter(i).data()));
  }
}

void Model::adopt(arena::Arena& arena) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& tensor = parameters_[i].tensor;
    tensor.set_data(tensor_in(arena, arena.parameter(i), tensor.sizes()));
  }
  for (auto& t : private_) t.bytes = t.tensor.nbytes();
}

void Model::release() {
  for (auto& p : parameters_) {
    p.tensor.set_data(p.tensor.detach().clone());
    p.tensor.mutable_grad().reset();
  }
}

std::string Model::strayed(arena::Arena& arena, bool new_ones) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& tensor = parameters_[i].tensor;
    if (tensor.numel() == 0 || tensor.data_ptr() == arena.parameter(i).data()) continue;
    return cat("parameter '", parameters_[i].name,
               "' lies in other memory than its State gave it, as after ",
               "torch::load() or Module::to(), and would not be trained: do that before the first ",
               "call of steps(), version(), epoch() or digest()");
  }
  for (std::size_t i = 0; i < frozen_; ++i) {
    if (!private_[i].tensor.requires_grad()) continue;
    return cat("parameter '", private_[i].name, "' requires a gradient now and did not when the ",
               "State was made, so it would not be trained: let it require one by then");
  }
  for (const auto& t : private_) {
    if (t.tensor.nbytes() == t.bytes) continue;
    return cat("'", t.name, "' has ", t.tensor.nbytes(), " bytes, and had ", t.bytes,
               " before the ",
               "first step: its State keeps no more, so give it its full size by then");
  }
  if (!new_ones) return {};
  std::set<const void*> known;
  for (const auto& p : parameters_) known.insert(p.tensor.unsafeGetTensorImpl());
  for (const auto& t : private_) known.insert(t.tensor.unsafeGetTensorImpl());
  for (const auto& item : module_->named_parameters()) {
    if (known.count(item.value().unsafeGetTensorImpl()) != 0) continue;
    return cat("parameter '", item.key(), "' has come to the module since the State was made, and ",
               "would not be trained: make all layers before");
  }
  for (const auto& item : module_->named_buffers()) {
    const torch::Tensor& buffer = item.value();
    if (!buffer.defined() || known.count(buffer.unsafeGetTensorImpl()) != 0) continue;
    return cat("buffer '", item.key(), "' is not the tensor that it was when the State was made, ",
               "and would not be kept: change it in place, by copy_() say");
  }
  return {};
}

bool Model::has_own() const {
  return private_.size() > frozen_ || !kept_.empty();
}

void Model::pack(std::span<std::byte> bytes) const {
  std::byte* at = bytes.data();
  for (const auto& t : private_) {
    copy_out(t.tensor, at);
    at += t.tensor.nbytes();
  }
  for (const auto& k : kept_) {
    std::memcpy(at, k.data, k.bytes);
    at += k.bytes;
  }
  HF_ASSERT(at == bytes.data() + bytes.size());
}

void Model::unpack(std::span<const std::byte> bytes) const {
  const std::byte* at = bytes.data();
  for (const auto& t : private_) {
    copy_in(t.tensor, at);
    at += t.tensor.nbytes();
  }
  for (const auto& k : kept_) {
    std::memcpy(k.data, at, k.bytes);
    at += k.bytes;
  }
  HF_ASSERT(at == bytes.data() + bytes.size());
}

}  // namespace holdfast::train
