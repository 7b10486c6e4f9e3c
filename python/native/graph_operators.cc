// Holdfast's collectives as operators of a compiled graph: plain C functions of the form that
// MindSpore calls "aot", which never fail but mark, because a graph whose operator failed can not
// run again.
//
// They are in libholdfast_mindspore.so, above libholdfast.so. Python describes each operator
// (hfg_describe), tells which group stands behind a group's number now (hfg_group), and asks
// after a run what became of the collectives in it (hfg_status). An operator without a group, and
// one whose collective was cut short, gives an echo: the result as if every rank had sent what this
// one sent. The step that saw it is void.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "collective/reduce.h"
#include "holdfast/c.h"

namespace {

using holdfast::collective::Element;  // With the values of hf_dtype.
using holdfast::collective::Op;       // With those of hf_op.

constexpr std::size_t kOperators = 4096;
constexpr std::size_t kGroups = 64;

enum class Kind : std::int32_t { kReduce = 0, kGather = 1, kScatter = 2, kBroadcast = 3 };

// Which collective of the program it is: what all ranks have to be at together. MindSpore's runtime
// starts whatever is ready, so each rank has an order of its own for operators that nothing ties
// together: equal ones would give each other's results. _operators.py ties them; and the ranks
// first tell which one they are at.
struct Identity {
  Kind kind = Kind::kReduce;
  hf_op op = HF_SUM;
  std::int32_t root = 0;
  std::int32_t number = 0;  // Which of its kind the program made: the same on all ranks.
  // 1: the adjoint of one with this number. It has one input more, which it does not look at: the
  // result of that one, so that it comes after.
  std::int32_t backward = 0;
  // 1: its inputs are gradients: without a group an echo would be wrong bits.
  std::int32_t training = 0;
  std::uint64_t tensors = 0;  // This and the next: of the call under way.
  std::uint64_t elements = 0;
  bool operator==(const Identity&) const = default;
};

struct Operator {
  Identity which;
  std::int32_t group = 0;
  std::int32_t size = 1;  // Ranks of the group: known before the group itself is.
  std::int32_t rank = 0;  // This process's in the group, as well.
  float scale = 1.0F;     // Of a sum of floats: what it is multiplied by.
};

std::array<Operator, kOperators> operators;
std::array<std::atomic<hf_group*>, kGroups> groups;
std::array<std::mutex, kGroups> turns;  // One operator of a group at a time.
std::atomic<std::int32_t> first_status{HF_OK};
std::atomic<std::uint64_t> exchanged{0};
std::atomic<bool> strict{false};
std::atomic<void (*)()> on_training{nullptr};
std::atomic<void (*)()> on_echo{nullptr};
std::mutex message_mutex;
std::string message;

// Where nobody would look for the mark: the process ends here, its agent starts it again.
[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "holdfast: %s\n", why);
  std::fflush(nullptr);
  std::_Exit(1);
}

void fail(hf_status status, const std::string& why) {
  if (strict.load()) give_up(why.c_str());
  const std::lock_guard lock(message_mutex);
  if (first_status.load() != HF_OK) return;
  message = why;
  first_status = status;
}

// One tensor of an operator's call.
struct Tensor {
  const void* in;
  void* out;
  std::uint64_t count;
  Element element;
  std::uint64_t bytes() const { return count * holdfast::collective::size_of(element); }
  hf_dtype dtype() const { return static_cast<hf_dtype>(element); }
};

template <typename T>
void multiply(T* data, std::uint64_t count, T factor) {
  for (std::uint64_t i = 0; i < count; ++i) data[i] *= factor;
}

void scale(const Tensor& tensor, float factor) {
  if (factor == 1.0F) return;
  if (tensor.element == Element::kFloat32) {
    multiply(static_cast<float*>(tensor.out), tensor.count, factor);
  } else if (tensor.element == Element::kFloat64) {
    multiply(static_cast<double*>(tensor.out), tensor.count, static_cast<double>(factor));
  }
}

hf_status collective(const Operator& o, hf_group* group, const Tensor& tensor) {
  const auto& [in, out, count, element] = tensor;
  switch (o.which.kind) {
    case Kind::kReduce:
      return hf_all_reduce_into(group, in, out, count, tensor.dtype(), o.which.op, nullptr);
    case Kind::kGather:
      return hf_all_gather(group, in, tensor.bytes(), out, nullptr);
    case Kind::kScatter:
      return hf_reduce_scatter(group, in, out, count / static_cast<std::uint64_t>(o.size),
                               tensor.dtype(), o.which.op, nullptr);
    case Kind::kBroadcast:
      std::memcpy(out, in, tensor.bytes());
      return hf_broadcast(group, out, tensor.bytes(), o.which.root, nullptr);
  }
  return HF_USER;
}

// "the backward of AllReduce 3 (sum, elements: 64)"
std::string described(const Identity& which) {
  constexpr std::array<const char*, 4> kForward = {"AllReduce ", "AllGather ", "ReduceScatter ",
                                                   "Broadcast "};
  // What it is the adjoint of.
  constexpr std::array<const char*, 4> kBackward = {"AllReduce ", "ReduceScatter ", "AllGather ",
                                                    "Broadcast "};
  const auto kind = static_cast<std::size_t>(which.kind);
  std::string text = which.backward != 0   ? std::string("the backward of ") + kBackward.at(kind)
                     : which.training != 0 ? "the sum of gradients "
                                           : kForward.at(kind);
  return text + std::to_string(which.number) + " (" + name_of(static_cast<Op>(which.op)) +
         ", elements: " + std::to_string(which.elements) + ")";
}

// Notes it where they are not at the same one.
void agree(const Operator& o, hf_group* group, const std::vector<Tensor>& tensors) {
  Identity mine = o.which;
  mine.tensors = tensors.size();
  for (const Tensor& tensor : tensors) mine.elements += tensor.count;
  std::vector<Identity> all(static_cast<std::size_t>(o.size));
  const hf_status status = hf_all_gather(group, &mine, sizeof mine, all.data(), nullptr);
  if (status != HF_OK) return fail(status, hf_last_error());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == mine) continue;
    return fail(
        HF_USER,
        "the ranks run different collectives: this one is at " + described(mine) + ", rank " +
            std::to_string(rank) + " of the group at " + described(all[rank]) +
            " (numbered as the program makes them); let all ranks run the same ones in one order");
  }
}

// What comes of as many equal inputs. Of gradients a mean is taken, which is the number itself.
void reduce_equal(const Operator& o, const Tensor& tensor, const std::byte* from) {
  if (o.which.training != 0) {
    std::memcpy(tensor.out, from, tensor.bytes());
    return;
  }
  const std::vector<const std::byte*> rows(static_cast<std::size_t>(o.size), from);
  holdfast::collective::reduce_rows(static_cast<std::byte*>(tensor.out), rows, tensor.count,
                                    {tensor.element, static_cast<Op>(o.which.op)});
}

void echo(const Operator& o, const Tensor& tensor) {
  auto* out = static_cast<std::byte*>(tensor.out);
  const auto* in = static_cast<const std::byte*>(tensor.in);
  const auto size = static_cast<std::uint64_t>(o.size);
  Tensor part = tensor;
  switch (o.which.kind) {
    case Kind::kReduce:
      return reduce_equal(o, tensor, in);
    case Kind::kScatter:
      part.count /= size;
      return reduce_equal(o, part, in + static_cast<std::size_t>(o.rank) * part.bytes());
    case Kind::kGather:
      for (std::uint64_t i = 0; i < size; ++i) {
        std::memcpy(out + i * tensor.bytes(), in, tensor.bytes());
      }
      return;
    case Kind::kBroadcast:
      std::memcpy(out, in, tensor.bytes());
  }
}

// Whether to exchange at all.
bool is_answered(hf_group* group) {
  return group != nullptr && first_status.load() == HF_OK;
}

void exchange(const Operator& o, hf_group* group, const Tensor& tensor) {
  if (tensor.count == 0) return;
  if (!is_answered(group)) return echo(o, tensor);
  const hf_status status = collective(o, group, tensor);
  ++exchanged;
  if (status == HF_OK) return scale(tensor, o.scale);
  fail(status, hf_last_error());
  echo(o, tensor);
}

Tensor tensor_of(const void* in, void* out, int dimensions, const std::int64_t* shape,
                 const char* type) {
  Tensor tensor{in, out, 1, Element::kFloat32};
  for (int d = 0; d < dimensions; ++d) tensor.count *= static_cast<std::uint64_t>(shape[d]);
  while (tensor.element != Element::kBytes && std::strcmp(name_of(tensor.element), type) != 0) {
    tensor.element = static_cast<Element>(static_cast<int>(tensor.element) + 1);
  }
  return tensor;
}

// The form that MindSpore calls: inputs, then outputs.
int run(std::size_t index, int count, void** data, const int* dimensions, std::int64_t** shapes,
        const char** types) {
  const Operator& o = operators[index];
  const auto group_index = static_cast<std::size_t>(o.group);
  if (auto* first = on_training.load(); first != nullptr && o.which.training != 0) first();
  if (groups[group_index].load() == nullptr) {
    if (auto* alone = on_echo.load(); alone != nullptr) alone();
  }
  const std::lock_guard turn(turns[group_index]);
  hf_group* group = groups[group_index].load();
  if (group == nullptr && o.which.training != 0 && strict.load()) {
    give_up("gradients were exchanged outside of a training that Holdfast protects");
  }
  std::vector<Tensor> tensors;
  const int n = (count - o.which.backward) / 2;
  for (int i = 0; i < n; ++i) {
    tensors.push_back(tensor_of(data[i], data[count - n + i], dimensions[i], shapes[i], types[i]));
    if (tensors.back().element != Element::kBytes) continue;
    // Not even an echo is possible: its size is not known.
    fail(HF_USER,
         std::string("collectives have no type ") + types[i] + "; cast it, to int64 for one");
    tensors.pop_back();
  }
  if (is_answered(group)) agree(o, group, tensors);
  for (const Tensor& tensor : tensors) exchange(o, group, tensor);
  return 0;
}

}  // namespace

extern "C" {

HF_API std::uint32_t hfg_operators() {
  return kOperators;
}
HF_API std::uint32_t hfg_groups() {
  return kGroups;
}

// Before the operator is first called.
HF_API void hfg_describe(std::uint32_t index, std::int32_t kind, std::int32_t op,
                         std::int32_t group, std::int32_t root, std::int32_t size, float factor,
                         std::int32_t training, std::int32_t number, std::int32_t rank,
                         std::int32_t backward) {
  const Identity which{
      static_cast<Kind>(kind), static_cast<hf_op>(op), root, number, backward, training};
  operators.at(index) = {which, group, size, rank, factor};
}

// NULL: collectives of this group give echoes.
HF_API void hfg_group(std::uint32_t index, hf_group* group) {
  groups.at(index) = group;
}

// 1: no step looks after marks, so a collective that is cut short ends the process.
HF_API void hfg_strict(std::int32_t on) {
  strict = on != 0;
}

// What is called, in the operator's thread, before gradients are exchanged: a loop that no step
// protects has begun. NULL: nothing.
HF_API void hfg_on_training(void (*function)()) {
  on_training = function;
}

// What is called, in the operator's thread, before a collective of a group that is not there gives
// an echo; it may bring the group. NULL: nothing.
HF_API void hfg_on_echo(void (*function)()) {
  on_echo = function;
}

// Collectives that were made with others.
HF_API std::uint64_t hfg_count() {
  return exchanged.load();
}

// The first outcome that was not HF_OK since hfg_clear(); its sentence, cut to `room` bytes.
HF_API std::int32_t hfg_status(char* text, std::uint64_t room) {
  const std::lock_guard lock(message_mutex);
  if (text != nullptr && room > 0) {
    const std::size_t length = std::min<std::size_t>(message.size(), room - 1);
    std::memcpy(text, message.data(), length);
    text[length] = '\0';
  }
  return first_status.load();
}
HF_API void hfg_clear() {
  const std::lock_guard lock(message_mutex);
  message.clear();
  first_status = HF_OK;
}

// By four octal digits.
#define HFG_OPERATOR(number)                                                                       \
  HF_API int hfg_operator_##number(int count, void** data, int* dimensions, std::int64_t** shapes, \
                                   const char** types, void*, void*) {                             \
    return run(0##number, count, data, dimensions, shapes, types);                                 \
  }
#define HFG_8(digits)     \
  HFG_OPERATOR(digits##0) \
  HFG_OPERATOR(digits##1) \
  HFG_OPERATOR(digits##2) \
  HFG_OPERATOR(digits##3) \
  HFG_OPERATOR(digits##4) \
  HFG_OPERATOR(digits##5) \
  HFG_OPERATOR(digits##6) \
  HFG_OPERATOR(digits##7)
#define HFG_64(digits) \
  HFG_8(digits##0)     \
  HFG_8(digits##1)     \
  HFG_8(digits##2)     \
  HFG_8(digits##3)     \
  HFG_8(digits##4)     \
  HFG_8(digits##5)     \
  HFG_8(digits##6)     \
  HFG_8(digits##7)
#define HFG_512(digits) \
  HFG_64(digits##0)     \
  HFG_64(digits##1)     \
  HFG_64(digits##2)     \
  HFG_64(digits##3)     \
  HFG_64(digits##4)     \
  HFG_64(digits##5)     \
  HFG_64(digits##6)     \
  HFG_64(digits##7)
HFG_512(0)
HFG_512(1)
HFG_512(2)
HFG_512(3)
HFG_512(4)
HFG_512(5)
HFG_512(6)
HFG_512(7)

}  // extern "C"
