#include "collective/registered_rows.h"

#include <string>
#include <utility>

namespace holdfast::collective {

Result<RegisteredRows> RegisteredRows::map(const Group::Options& o) {
  RegisteredRows mapped;
  if (o.registered.bytes == 0) return mapped;
  for (int k = 0; k < o.world_size; ++k) {
    if (k == o.rank && o.registered.memory != nullptr) {
      mapped.rows.push_back(o.registered.memory);
      continue;
    }
    const std::string& path = o.registered.files[static_cast<std::size_t>(k)];
    const auto file = open_shared(path);
    if (!file) return file.error();
    auto mapping = map_shared(*file, path, o.registered.offset, o.registered.bytes);
    if (!mapping) return mapping.error();
    mapped.rows.push_back((*mapping)->bytes().data());
    mapped.mappings.push_back(*std::move(mapping));
  }
  mapped.own = {mapped.rows[static_cast<std::size_t>(o.rank)], o.registered.bytes};
  return mapped;
}

std::uint64_t RegisteredRows::offset_of(const std::byte* data, std::size_t bytes) const {
  if (bytes == 0) return 0;
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const auto begin = reinterpret_cast<std::uintptr_t>(own.data());
  if (at < begin || at - begin > own.size()) return kOutside;
  return bytes <= own.size() - (at - begin) ? at - begin : kOutside;
}

}  // namespace holdfast::collective
