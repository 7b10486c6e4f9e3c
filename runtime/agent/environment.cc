#include "runtime/agent/environment.h"

#include "base/text.h"

namespace holdfast::runtime {

std::string value_of(const std::vector<std::string>& environment, std::string_view name) {
  for (const auto& entry : environment) {
    if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return {};
}

void unset(std::vector<std::string>& environment, std::string_view name) {
  const std::string beginning = cat(name, '=');
  std::erase_if(environment, [&](const auto& entry) { return entry.starts_with(beginning); });
}

void set(std::vector<std::string>& environment, std::string_view name, std::string_view value) {
  unset(environment, name);
  environment.push_back(cat(name, '=', value));
}

}  // namespace holdfast::runtime
