#include "collective/group.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "collective/host_part.h"
#include "collective/span_part.h"

namespace holdfast::collective {
namespace {

bool lies_on_one_host(const Layout& layout) {
  const std::vector<int>& hosts = layout.host_of;
  return std::all_of(hosts.begin(), hosts.end(), [&](int host) { return host == hosts[0]; });
}

Status check_layout(const Group::Options& o) {
  const auto refuse = [](std::string what) { return Error{Blame::kUser, std::move(what)}; };
  const std::size_t hosts = o.layout.host_of.size();
  if (hosts != 0 && hosts != static_cast<std::size_t>(o.world_size)) {
    return refuse(cat("layout.host_of names the hosts of ", hosts, " ranks, but the group has ",
                      o.world_size, "; one host per rank is needed"));
  }
  if (!o.world_ranks.empty() && o.world_ranks.size() != static_cast<std::size_t>(o.world_size)) {
    return refuse(cat("world_ranks names ", o.world_ranks.size(), " ranks, but the group has ",
                      o.world_size, "; one of the world per rank is needed"));
  }
  if (!lies_on_one_host(o.layout) && o.layout.links == nullptr) {
    return refuse("layout.links is null, but the ranks lie on several hosts; give it the links");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Group>> Group::join(const Options& options, std::stop_token cancel) {
  if (const Status good = check_layout(options); !good) return good.error();
  return lies_on_one_host(options.layout) ? HostPart::join(options, cancel)
                                          : SpanPart::join(options, cancel);
}

}  // namespace holdfast::collective
