#include "runtime/jobs/addresses_file.h"

#include <utility>
#include <variant>

#include "os/folder.h"
#include "os/host.h"
#include "wire/codec.h"

namespace holdfast::runtime {
namespace {

constexpr const char* kAddressesFile = "addresses";

}  // namespace

Status write_addresses_file(const std::string& directory, const wire::Addresses& addresses) {
  const auto folder = os::open_runtime_directory(directory);
  if (!folder) return folder.error();
  if (!*folder) return {};  // The job is being removed.
  return folder->write(kAddressesFile, wire::encode(addresses));
}

std::optional<wire::Addresses> read_addresses_file(const std::string& directory) {
  const auto folder = os::open_runtime_directory(directory);
  if (!folder || !*folder) return std::nullopt;
  const auto bytes = folder->read_if_there(kAddressesFile);
  if (!bytes || !*bytes) return std::nullopt;
  auto message = wire::decode(wire::kind_of(wire::Addresses{}), **bytes);
  if (!message) return std::nullopt;
  return std::get<wire::Addresses>(*std::move(message));
}

}  // namespace holdfast::runtime
