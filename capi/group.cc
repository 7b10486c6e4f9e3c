// The collectives' part of c.h.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/text.h"
#include "capi/fold.h"
#include "capi/handles.h"
#include "capi/operations.h"

using namespace holdfast;
using capi::Blocks;
using capi::Elements;
using capi::report;
using capi::Team;
using capi::user_error;
using capi::Verdict;
using capi::verdict_of;
using collective::Group;

namespace holdfast::capi {
namespace {

constexpr std::size_t kNameMax = 60;

bool is_name(const char* name) {
  if (name == nullptr || *name == '\0' || std::strlen(name) > kNameMax) return false;
  return std::all_of(name, name + std::strlen(name), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

}  // namespace

Verdict make_group(std::shared_ptr<Era> era, const runtime::Identity& identity,
                   const std::int32_t* ranks, std::uint64_t count, const char* name,
                   const char* prefix, hf_group** group) {
  if (!is_name(name)) {
    return user_error(cat("a group's name is 1 to ", kNameMax,
                          " letters, digits, '.', '_', '-', not '", name == nullptr ? "" : name,
                          "'"));
  }
  Team::Members members{.ranks = {}, .me = -1, .name = cat(prefix, name)};
  for (std::uint64_t i = 0; i < count; ++i) {
    if (ranks[i] < 0 || ranks[i] >= identity.world_size) {
      return user_error(cat("group ", name, ": there is no rank ", ranks[i], " in a world of ",
                            identity.world_size));
    }
    if (ranks[i] == identity.rank) members.me = static_cast<int>(i);
    members.ranks.push_back(ranks[i]);
  }
  if (std::set(members.ranks.begin(), members.ranks.end()).size() != count) {
    return user_error(cat("group ", name, " names a rank twice"));
  }
  if (members.me < 0) {
    return user_error(
        cat("rank ", identity.rank, " is not in group ", name, "; only its members open it"));
  }
  *group = new hf_group{std::make_unique<Team>(std::move(era), std::move(members))};
  return {};
}

}  // namespace holdfast::capi

namespace {

// Does it now, or starts it.
hf_status carry_out(Team& team, hf_work** work, Team::GroupOperation operation) {
  if (work == nullptr) return report(team.run(operation));
  *work = new hf_work{team.start(std::move(operation))};
  return HF_OK;
}

std::span<std::byte> bytes_at(const void* data, uint64_t bytes) {
  return {static_cast<std::byte*>(const_cast<void*>(data)), bytes};
}

Verdict check_numbers(hf_dtype dtype, hf_op op) {
  if (!capi::is_known(dtype, op)) {
    return user_error(cat("there is no hf_dtype ", static_cast<int>(dtype), " with an hf_op ",
                          static_cast<int>(op)));
  }
  const auto objection = capi::objection(dtype, op);
  return objection ? user_error(*objection) : Verdict{};
}

Verdict check_peer(const Team& team, int32_t peer, const char* what) {
  if (peer >= 0 && peer < team.size() && peer != team.rank()) return {};
  return user_error(
      cat(what, " rank ", peer, ": it must be another rank of the group, 0 to ", team.size() - 1));
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

hf_status hf_wait(hf_work* work, int64_t milliseconds) {
  return report(work->work->wait(std::chrono::milliseconds(std::min<int64_t>(
      milliseconds,
      std::chrono::duration_cast<std::chrono::milliseconds>(config::kNever).count()))));
}

void hf_release(hf_work* work) {
  if (work == nullptr) return;
  static_cast<void>(work->work->wait(Duration{-1}));
  delete work;
}

hf_status hf_barrier(hf_group* group, hf_work** work) {
  return carry_out(*group->team, work, [](Group& g) { return verdict_of(g.barrier(), g); });
}

hf_status hf_broadcast(hf_group* group, void* data, uint64_t bytes, int32_t root, hf_work** work) {
  if (root < 0 || root >= group->team->size()) {
    return report(user_error(cat("a broadcast from rank ", root, ": the group has ranks 0 to ",
                                 group->team->size() - 1)));
  }
  return carry_out(*group->team, work, [=](Group& g) {
    return verdict_of(g.broadcast(bytes_at(data, bytes), root), g);
  });
}

hf_status hf_all_gather(hf_group* group, const void* mine, uint64_t bytes, void* all,
                        hf_work** work) {
  return carry_out(*group->team, work, [=](Group& g) {
    const auto n = static_cast<uint64_t>(g.world_size());
    return verdict_of(g.all_gather(bytes_at(mine, bytes), bytes_at(all, n * bytes)), g);
  });
}

hf_status hf_all_reduce(hf_group* group, void* data, uint64_t count, hf_dtype dtype, hf_op op,
                        hf_work** work) {
  return hf_all_reduce_into(group, data, data, count, dtype, op, work);
}

hf_status hf_all_reduce_into(hf_group* group, const void* from, void* to, uint64_t count,
                             hf_dtype dtype, hf_op op, hf_work** work) {
  if (const Verdict v = check_numbers(dtype, op); v.status != HF_OK) return report(v);
  return carry_out(*group->team, work, [=](Group& g) {
    return capi::all_reduce(g, static_cast<const std::byte*>(from), Elements{to, count, dtype}, op);
  });
}

hf_status hf_reduce_scatter(hf_group* group, const void* all, void* mine, uint64_t count,
                            hf_dtype dtype, hf_op op, hf_work** work) {
  if (const Verdict v = check_numbers(dtype, op); v.status != HF_OK) return report(v);
  return carry_out(*group->team, work, [=](Group& g) {
    return capi::reduce_scatter(g, static_cast<const std::byte*>(all), Elements{mine, count, dtype},
                                op);
  });
}

hf_status hf_all_to_all(hf_group* group, const void* send, const uint64_t* send_bytes,
                        void* receive, const uint64_t* receive_bytes, uint64_t block_bytes,
                        hf_work** work) {
  if ((send_bytes == nullptr) != (receive_bytes == nullptr)) {
    return report(user_error("hf_all_to_all() needs both arrays of sizes, or none"));
  }
  const int n = group->team->size();
  const bool same = send_bytes == nullptr;
  const Blocks out{bytes_at(send, 0).data(), sizes(send_bytes, block_bytes, n)};
  const Blocks in{bytes_at(receive, 0).data(), sizes(receive_bytes, block_bytes, n)};
  return carry_out(*group->team, work,
                   [=](Group& g) { return capi::all_to_all(g, out, in, same); });
}

hf_status hf_send(hf_group* group, const void* data, uint64_t bytes, int32_t to, hf_work** work) {
  return hf_send_tagged(group, data, bytes, to, 0, work);
}

hf_status hf_receive(hf_group* group, void* data, uint64_t bytes, int32_t from, hf_work** work) {
  return hf_receive_tagged(group, data, bytes, from, 0, work);
}

hf_status hf_send_tagged(hf_group* group, const void* data, uint64_t bytes, int32_t to,
                         uint32_t tag, hf_work** work) {
  Team& team = *group->team;
  if (const Verdict v = check_peer(team, to, "a send to"); v.status != HF_OK) return report(v);
  return carry_out(team.pair(team.rank(), to, tag % HF_TAGS), work,
                   [=](Group& g) { return verdict_of(g.broadcast(bytes_at(data, bytes), 0), g); });
}

hf_status hf_receive_tagged(hf_group* group, void* data, uint64_t bytes, int32_t from, uint32_t tag,
                            hf_work** work) {
  Team& team = *group->team;
  if (const Verdict v = check_peer(team, from, "a receive from"); v.status != HF_OK) {
    return report(v);
  }
  return carry_out(team.pair(from, team.rank(), tag % HF_TAGS), work,
                   [=](Group& g) { return verdict_of(g.broadcast(bytes_at(data, bytes), 0), g); });
}

}  // extern "C"
