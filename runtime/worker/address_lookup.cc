#include "runtime/worker/address_lookup.h"

#include <algorithm>
#include <utility>

#include "runtime/jobs/addresses_file.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Duration kPatience = 1s;
// From the first look to the second. Each further delay is twice as long, up to kLast.
constexpr Duration kFirst = 1ms;
constexpr Duration kLast = 64ms;

}  // namespace

void AddressLookup::begin() {
  loop_.cancel(timer_);
  timer_ = loop_.after({}, [this] { look(kFirst, io::Loop::now() + kPatience); });
}

// The agent was told the addresses before this process, so it has written the file or is about to.
void AddressLookup::look(Duration next, std::optional<Instant> overdue) {
  if (!handlers_.is_awaited()) return;
  const bool is_overdue = overdue && io::Loop::now() >= *overdue;
  if (is_overdue) overdue.reset();
  timer_ = loop_.after(next, [this, next, overdue] { look(std::min(2 * next, kLast), overdue); });
  if (const auto found = read_addresses_file(directory_)) {
    if (auto book = AddressBook::heard(*found)) handlers_.on_found(std::move(book));
  }
  if (is_overdue && handlers_.is_awaited()) handlers_.on_overdue();
}

}  // namespace holdfast::runtime
