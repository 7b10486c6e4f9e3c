#include "runtime/worker/table_setup.h"

#include "base/prng.h"
#include "base/text.h"

namespace holdfast::runtime {

Rank server_of(std::uint64_t key, Rank servers) {
  return static_cast<Rank>(mix(key ^ 0x7461626c65734846U) % static_cast<std::uint64_t>(servers));
}

std::string to_text(const TableSetup& setup) {
  return cat(setup.from, '\0', table::to_text(setup.specs));
}

Result<TableSetup> setup_in(const std::string& text) {
  const std::size_t end = text.find('\0');
  TableSetup setup;
  if (end != text.npos && table::from_text(text.substr(end + 1), setup.specs)) {
    setup.from = text.substr(0, end);
    return setup;
  }
  return Error{Blame::kPeer,
               "the job's tables are described in a form that is unknown here: start all processes "
               "with the same release of Holdfast"};
}

}  // namespace holdfast::runtime
