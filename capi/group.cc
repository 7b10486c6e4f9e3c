// The functions of c.h for groups and collectives.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/text.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "collective/operations.h"

using namespace holdfast;
using capi::report;
using capi::report_caught;
using capi::user_error;
using collective::Blocks;
using collective::Element;
using collective::Numbers;
using collective::Op;
using collective::Operation;

namespace holdfast::capi {

hf_status open_group(std::shared_ptr<collective::CurrentGeneration> current,
                     const runtime::Identity& identity, const std::int32_t* ranks,
                     std::uint64_t count, const char* name, const char* prefix, hf_group** group) {
  auto team = collective::Team::open(std::move(current), identity.rank, identity.world_size,
                                     {ranks, count}, name == nullptr ? "" : name, prefix);
  if (!team) return report(team.error());
  *group = new hf_group{*std::move(team)};
  return HF_OK;
}

}  // namespace holdfast::capi

namespace {

// Element and Op have the values of hf_dtype and hf_op.
static_assert(static_cast<int>(Element::kFloat32) == HF_FLOAT32);
static_assert(static_cast<int>(Element::kFloat64) == HF_FLOAT64);
static_assert(static_cast<int>(Element::kInt32) == HF_INT32);
static_assert(static_cast<int>(Element::kInt64) == HF_INT64);
static_assert(static_cast<int>(Element::kFloat16) == HF_FLOAT16);
static_assert(static_cast<int>(Element::kBfloat16) == HF_BFLOAT16);
static_assert(static_cast<int>(Element::kInt8) == HF_INT8);
static_assert(static_cast<int>(Element::kUint8) == HF_UINT8);
static_assert(static_cast<int>(Element::kInt16) == HF_INT16);
static_assert(static_cast<int>(Element::kBool) == HF_BOOL);
static_assert(static_cast<int>(Op::kSum) == HF_SUM && static_cast<int>(Op::kProduct) == HF_PRODUCT);
static_assert(static_cast<int>(Op::kMin) == HF_MIN && static_cast<int>(Op::kMax) == HF_MAX);
static_assert(static_cast<int>(Op::kAnd) == HF_AND && static_cast<int>(Op::kOr) == HF_OR);
static_assert(static_cast<int>(Op::kXor) == HF_XOR && static_cast<int>(Op::kAverage) == HF_AVERAGE);

Status check_known(hf_dtype dtype, hf_op op) {
  if (dtype >= HF_FLOAT32 && dtype <= HF_BOOL && op >= HF_SUM && op <= HF_AVERAGE) return {};
  return user_error(cat("there is no hf_dtype ", static_cast<int>(dtype), " with an hf_op ",
                        static_cast<int>(op)));
}

Numbers numbers_at(void* data, uint64_t count, hf_dtype dtype) {
  return {data, count, static_cast<Element>(dtype)};
}

std::span<std::byte> bytes_at(void* data, uint64_t bytes) {
  return {static_cast<std::byte*>(data), bytes};
}
std::span<const std::byte> bytes_at(const void* data, uint64_t bytes) {
  return {static_cast<const std::byte*>(data), bytes};
}

// Runs the operation now or, if `work` is not null, starts it on the group's own thread.
hf_status carry_out(Result<Operation> operation, hf_work** work) {
  if (!operation) return report(operation.error());
  if (work == nullptr) return report((*std::move(operation)).run());
  *work = new hf_work{(*std::move(operation)).start()};
  return HF_OK;
}

std::vector<std::uint64_t> sizes(const uint64_t* bytes, uint64_t block, int n) {
  const auto count = static_cast<std::size_t>(n);
  if (bytes == nullptr) return std::vector<std::uint64_t>(count, block);
  return {bytes, bytes + count};
}

}  // namespace

extern "C" {

void hf_group_close(hf_group* group) {
  delete group;
}

int32_t hf_group_rank(const hf_group* group) {
  return group->team->rank();
}

int32_t hf_group_size(const hf_group* group) {
  return group->team->size();
}

hf_status hf_wait(hf_work* work, int64_t milliseconds) try {
  if (milliseconds < 0) return report(work->work->wait());
  const auto ended = work->work->wait_for(
      std::min(std::chrono::milliseconds(milliseconds),
               std::chrono::duration_cast<std::chrono::milliseconds>(config::kNever)));
  return ended ? report(*ended) : HF_PENDING;
} catch (...) {
  return report_caught();
}

void hf_release(hf_work* work) {
  if (work == nullptr) return;
  static_cast<void>(work->work->wait());
  delete work;
}

hf_status hf_barrier(hf_group* group, hf_work** work) try {
  return carry_out(collective::barrier(*group->team), work);
} catch (...) {
  return report_caught();
}

hf_status hf_broadcast(hf_group* group, void* data, uint64_t bytes, int32_t root,
                       hf_work** work) try {
  return carry_out(collective::broadcast(*group->team, bytes_at(data, bytes), root), work);
} catch (...) {
  return report_caught();
}

hf_status hf_all_gather(hf_group* group, const void* mine, uint64_t bytes, void* all,
                        hf_work** work) try {
  return carry_out(
      collective::all_gather(*group->team, bytes_at(mine, bytes), static_cast<std::byte*>(all)),
      work);
} catch (...) {
  return report_caught();
}

hf_status hf_all_reduce(hf_group* group, void* data, uint64_t count, hf_dtype dtype, hf_op op,
                        hf_work** work) try {
  return hf_all_reduce_into(group, data, data, count, dtype, op, work);
} catch (...) {
  return report_caught();
}

hf_status hf_all_reduce_into(hf_group* group, const void* from, void* to, uint64_t count,
                             hf_dtype dtype, hf_op op, hf_work** work) try {
  if (const Status known = check_known(dtype, op); !known) return report(known);
  return carry_out(
      collective::all_reduce(*group->team, from, numbers_at(to, count, dtype), static_cast<Op>(op)),
      work);
} catch (...) {
  return report_caught();
}

hf_status hf_reduce_scatter(hf_group* group, const void* all, void* mine, uint64_t count,
                            hf_dtype dtype, hf_op op, hf_work** work) try {
  if (const Status known = check_known(dtype, op); !known) return report(known);
  return carry_out(collective::reduce_scatter(*group->team, all, numbers_at(mine, count, dtype),
                                              static_cast<Op>(op)),
                   work);
} catch (...) {
  return report_caught();
}

hf_status hf_all_to_all(hf_group* group, const void* send, const uint64_t* send_bytes,
                        void* receive, const uint64_t* receive_bytes, uint64_t block_bytes,
                        hf_work** work) try {
  if ((send_bytes == nullptr) != (receive_bytes == nullptr)) {
    return report(user_error("hf_all_to_all() needs both arrays of sizes, or none"));
  }
  const int n = group->team->size();
  // Blocks has no const form; `send` is only read.
  Blocks out{bytes_at(const_cast<void*>(send), 0).data(), sizes(send_bytes, block_bytes, n)};
  Blocks in{bytes_at(receive, 0).data(), sizes(receive_bytes, block_bytes, n)};
  return carry_out(
      collective::all_to_all(*group->team, std::move(out), std::move(in), send_bytes == nullptr),
      work);
} catch (...) {
  return report_caught();
}

hf_status hf_send(hf_group* group, const void* data, uint64_t bytes, int32_t to,
                  hf_work** work) try {
  return hf_send_tagged(group, data, bytes, to, 0, work);
} catch (...) {
  return report_caught();
}

hf_status hf_receive(hf_group* group, void* data, uint64_t bytes, int32_t from,
                     hf_work** work) try {
  return hf_receive_tagged(group, data, bytes, from, 0, work);
} catch (...) {
  return report_caught();
}

hf_status hf_send_tagged(hf_group* group, const void* data, uint64_t bytes, int32_t to,
                         uint32_t tag, hf_work** work) try {
  return carry_out(collective::send(*group->team, bytes_at(data, bytes), to, tag % HF_TAGS), work);
} catch (...) {
  return report_caught();
}

hf_status hf_receive_tagged(hf_group* group, void* data, uint64_t bytes, int32_t from, uint32_t tag,
                            hf_work** work) try {
  return carry_out(collective::receive(*group->team, bytes_at(data, bytes), from, tag % HF_TAGS),
                   work);
} catch (...) {
  return report_caught();
}

}  // extern "C"
