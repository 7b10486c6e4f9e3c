#include "io/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "io/loop.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/host.h"

namespace holdfast::io {
Result<Trace> Trace::open_from(const std::string& directory, const std::string& role) {
  if (directory.empty()) return Trace();
  if (auto made = os::make_directories(directory); !made) return made.error();
  const std::string path =
      cat(directory, '/', role, '-', os::host_name(), '-', ::getpid(), ".jsonl");
  os::Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file) return os::system_error(cat("cannot open the trace ", path), errno);
  Trace trace;
  trace.file_ = std::make_shared<const os::Fd>(std::move(file));
  timespec wall{};
  ::clock_gettime(CLOCK_REALTIME, &wall);
  trace.event("clock", {{"boot", os::boot_name()},
                        {"wall_ns", wall.tv_sec * std::int64_t{1'000'000'000} + wall.tv_nsec}});
  return trace;
}

void Trace::write(std::string_view name, std::initializer_list<Field> fields) const {
  nlohmann::ordered_json json = {
      {"t_ns", Loop::now().count()}, {"event", name}, {"pid", ::getpid()}};
  for (const auto& field : fields) {
    std::visit([&](const auto& value) { json[std::string(field.name)] = value; }, field.value);
  }
  const std::string line =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  (void)!::write(file_->get(), line.data(), line.size());
}

}  // namespace holdfast::io
