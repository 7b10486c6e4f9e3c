#include "train/job.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "config/settings.h"
#include "runtime/scheduler/scheduler.h"
#include "runtime/worker/secure_channel.h"

namespace holdfast {

using detail::must;

void set_ps_context(PsContext&& context) {
  const auto set = [&]() -> Status {
    if (!context.enable_ssl) return {};
    const auto settings = config::from_environment(environ);
    if (!settings) return settings.error();
    return runtime::set_tls(*settings, context.config_file_path, context.client_password,
                            context.server_password);
  };
  const Status done = set();
  for (auto* text : {&context.client_password, &context.server_password}) {
    ::explicit_bzero(text->data(), text->size());
  }
  must(done);
}

Job init() {
  const auto settings = must(config::from_environment(environ));
  if (settings.role == config::Role::kScheduler) std::exit(runtime::serve(settings));
  auto parts = std::make_shared<detail::JobParts>();
  parts->worker = must(runtime::Worker::start(settings));
  parts->exceptions = std::uncaught_exceptions();
  return Job(std::move(parts));
}

Job::Job(std::shared_ptr<detail::JobParts> parts) : parts_(std::move(parts)) {}
Job::Job(Job&&) noexcept = default;

Job::~Job() {
  if (!parts_ || parts_->has_state || std::uncaught_exceptions() > parts_->exceptions) return;
  // The program trained nothing: the other ranks must learn that this one will not come.
  if (const Status ended = parts_->worker->end(); !ended) {
    std::fprintf(stderr, "holdfast: %s\n", ended.error().what.c_str());
  }
}

int Job::rank() const {
  return must(parts_->worker->identity()).rank;
}
int Job::world_size() const {
  return must(parts_->worker->identity()).world_size;
}

}  // namespace holdfast
