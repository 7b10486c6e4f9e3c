// `holdfast serve`.
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "apps/ask.h"
#include "apps/commands.h"
#include "apps/json.h"
#include "apps/web/server.h"
#include "apps/web/watch.h"
#include "base/digest.h"
#include "base/text.h"
#include "os/files.h"
#include "os/host.h"
#include "os/random_bits.h"
#include "runtime/jobs/membership.h"

namespace holdfast::apps {
namespace {

// Asks the scheduler of a job each time that it is called. A scheduler that has moved is looked for
// again only then: to look through this host's processes each second would cost more than to ask.
class Asker {
 public:
  explicit Asker(runtime::FoundJob job) : name_(job.name), job_(std::move(job)) {
    directory_ = job_->directory;
  }

  web::Answer operator()() {
    if (!job_) {
      auto chosen = choose_job(name_);
      if (!chosen.job) return last_words(chosen.why);
      job_ = std::move(chosen.job);
      directory_ = job_->directory;
    }
    if (job_->agent) log_dir_ = job_->agent->log_dir;
    auto said = ask_scheduler(*job_, wire::StatusQuery{}, std::chrono::seconds(5));
    auto* reply = said ? std::get_if<wire::StatusReply>(&*said) : nullptr;
    if (reply != nullptr) return {std::move(reply->json), {}};
    job_.reset();
    return {std::nullopt, said ? "the scheduler has given no status" : said.error().what};
  }

 private:
  // If the job has ended in good order, its folder is gone, and its agent has left the last status.
  [[nodiscard]] web::Answer last_words(const std::string& why) const {
    const bool has_ended = !log_dir_.empty() && ::access(directory_.c_str(), F_OK) != 0;
    if (!has_ended) return {std::nullopt, why};
    auto left = os::read_file(cat(log_dir_, '/', runtime::kLastStatus));
    return {left ? std::optional(*std::move(left)) : std::nullopt, "the job has ended"};
  }

  std::string name_;
  std::string directory_;
  std::string log_dir_;
  std::optional<runtime::FoundJob> job_;  // nullopt: it is looked for at the next call.
};

// HOST:PORT, where the port may be 0.
std::optional<Endpoint> listener_in(std::string_view text) {
  if (!text.ends_with(":0")) return endpoint_in(text);
  auto any = endpoint_in(cat(text.substr(0, text.size() - 1), 1));
  if (any) any->port = 0;
  return any;
}

// Serves until a signal ends this process.
int serve(std::function<web::Answer()> ask, const std::string& job, const std::string& token,
          const std::string& listen) {
  const auto where = listener_in(listen);
  if (!where) {
    return complain(cat("--listen is '", listen, "': it has to be HOST:PORT, as 127.0.0.1:9400"),
                    2);
  }
  web::Watch watch(std::move(ask));
  watch.wait();
  const auto server = web::Server::listen(watch, where->host, where->port, job, token);
  if (!server) return complain(server.error().what, 1);
  if (!os::is_loopback(where->host) && where->host != "localhost") {
    complain(cat("others can read the token on the way to ", where->host,
                 ", since HTTP is not encrypted: put a proxy with TLS before it, or listen at "
                 "127.0.0.1 and use `ssh -L`"),
             0);
  }
  std::printf("status page of job %s: http://%s/?token=%s\n", job.c_str(),
              host_and_port(where->host, (*server)->port()).c_str(), token.c_str());
  std::fflush(stdout);
  while (true) ::pause();
}

int serve_saved(const ServeArguments& arguments) {
  const auto ask = [path = arguments.saved]() -> web::Answer {
    auto text = os::read_file(path);
    if (!text) return {std::nullopt, text.error().what};
    return {*std::move(text), {}};
  };
  const auto first = ask();
  if (!first.status) return complain(first.why_not, 1);
  const auto status = Json::parse(*first.status, nullptr, false);
  if (!status.is_object()) {
    return complain(cat(arguments.saved,
                        " is no status: give a last_status.json, or what `holdfast "
                        "status --json` has printed"),
                    1);
  }
  const std::string job = text_of(status, "job");
  const std::string token = hex(os::random_bits()) + hex(os::random_bits());
  return serve(ask, is_plain_name(job) ? job : "saved", token, arguments.listen);
}

}  // namespace

int serve(const ServeArguments& arguments) {
  if (!arguments.saved.empty()) return serve_saved(arguments);
  auto chosen = choose_job(arguments.job);
  if (!chosen.job) return complain(chosen.why, chosen.code);
  const auto settings = settings_of(*chosen.job);
  if (!settings) return complain(settings.error().what, 2);
  const auto token = runtime::page_token_of(*settings, chosen.job->directory);
  if (!token) return complain(token.error().what, 1);
  if (arguments.print_token) {
    std::printf("%s\n", token->c_str());
    return 0;
  }
  const std::string job = chosen.job->name;
  return serve(Asker(*std::move(chosen.job)), job, *token, arguments.listen);
}

}  // namespace holdfast::apps
