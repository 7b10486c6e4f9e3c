#include "train/gradient_allocator.h"

#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

// Older releases of torch do not tell which operation is under way. With them nothing is lent.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
#define HF_ALLOCATES_GRADIENTS 1
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/variable.h>
#endif

namespace holdfast::train {

using torch::autograd::Node;

struct Loans {
  struct Place {
    Place(torch::Tensor p, Room r, Node* a)
        : parameter(std::move(p)), room(std::move(r)), accumulator(a) {}
    torch::Tensor parameter;
    Room room;
    Node* accumulator;
    bool filled = false;
    std::atomic<bool> lent = false;  // Any thread may free a tensor.
  };
  Place* asked_for(std::size_t bytes);
  Place* place_of(Node& node);

  std::deque<Place> places;
  std::vector<std::size_t> sizes;  // In bytes: the sizes of all places that are worth lending.
};

namespace {
thread_local Loans* pass_under_way = nullptr;
}  // namespace

#ifdef HF_ALLOCATES_GRADIENTS
namespace {

constexpr std::size_t kWorthwhile = 16384;  // Bytes; copying fewer is as cheap as lending.

// Whether hooks run before this node. A hook may keep the tensors that it gets, and its allocations
// would be taken for the node's.
bool hooked(Node& node) {
  return !node.pre_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty();
}

// Whether the node is of torch's own table of derivatives. A user's autograd::Function might keep
// what it allocates or gets. Only the mangled name of the node's type tells.
bool own(Node& node) {
  constexpr std::string_view kOwn = "N5torch8autograd9generated";
  return std::string_view(typeid(node).name()).starts_with(kOwn) && !hooked(node) &&
         node.post_hooks().empty();
}

std::size_t bytes_of(const torch::autograd::Edge& edge) {
  const auto& gradient = edge.function->input_metadata(edge.input_nr);
  std::size_t bytes = gradient.dtype().itemsize();
  for (const auto& size : gradient.shape_as_dim_vector()) {
    bytes *= static_cast<std::size_t>(size.maybe_as_int().value_or(0));
  }
  return bytes;
}

class Intermediary final : public c10::Allocator {
 public:
  explicit Intermediary(c10::Allocator* behind) : behind_(behind) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* place = pass_under_way == nullptr ? nullptr : pass_under_way->asked_for(bytes);
    if (place == nullptr) return behind_->allocate(bytes);
    place->lent = true;
    return {place->room.range.data(), place,
            [](void* lent) { static_cast<Loans::Place*>(lent)->lent = false; }, torch::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return behind_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* behind_;
};

}  // namespace

// The free place of the parameter to which a node passes its result: directly, or through one more
// operation. That is most often a view, since layers use their weights transposed.
Loans::Place* Loans::place_of(Node& node) {
  const bool passes_on = own(node) && node.num_outputs() == 1 && node.next_edge(0).is_valid();
  Node& accumulator = passes_on ? *node.next_edge(0).function : node;
  for (Place& place : places) {
    if (place.accumulator != &accumulator) continue;
    const bool free = !place.filled && !place.lent && !hooked(accumulator) &&
                      accumulator.post_hooks().size() == 1 &&  // Ours.
                      torch::autograd::impl::hooks(place.parameter).empty();
    return free ? &place : nullptr;
  }
  return nullptr;
}

Loans::Place* Loans::asked_for(std::size_t bytes) {
  if (std::find(sizes.begin(), sizes.end(), bytes) == sizes.end()) return nullptr;
  const auto node = torch::autograd::get_current_node();
  if (!node || !own(*node)) return nullptr;
  Node* receiver = nullptr;
  for (const auto& edge : node->next_edges()) {
    if (!edge.is_valid() || bytes_of(edge) != bytes) continue;
    if (receiver != nullptr) return nullptr;
    receiver = edge.function.get();
  }
  Place* place = receiver == nullptr ? nullptr : place_of(*receiver);
  return place != nullptr && place->room.range.size_bytes() == bytes ? place : nullptr;
}
#endif

GradientAllocator::GradientAllocator() : loans_(std::make_unique<Loans>()) {}

// If a place is still lent, its record and its memory are leaked on purpose: a tensor uses them.
GradientAllocator::~GradientAllocator() {
  const auto lent = [](const Loans::Place& place) { return place.lent.load(); };
  if (std::any_of(loans_->places.begin(), loans_->places.end(), lent)) (void)loans_.release();
}

void GradientAllocator::add(const torch::Tensor& parameter, Room room, Node* accumulator) {
  loans_->places.emplace_back(parameter, room, accumulator);
#ifdef HF_ALLOCATES_GRADIENTS
  const std::size_t bytes = room.range.size_bytes();
  if (bytes >= kWorthwhile) loans_->sizes.push_back(bytes);
  // Never removed: tensors keep pointers to their allocator.
  static const bool installed = [] {
    c10::SetCPUAllocator(new Intermediary(c10::GetCPUAllocator()));
    return true;
  }();
  (void)installed;
#endif
}

GradientAllocator::Pass::Pass(GradientAllocator& allocator)
    : before_(std::exchange(pass_under_way, allocator.loans_.get())) {
  for (auto& place : allocator.loans_->places) place.filled = false;
}
GradientAllocator::Pass::~Pass() {
  pass_under_way = before_;
}

void GradientAllocator::filled(std::size_t i) {
  loans_->places[i].filled = true;
}

bool GradientAllocator::is_lent(std::size_t i) const {
  return loans_->places[i].lent;
}

}  // namespace holdfast::train
