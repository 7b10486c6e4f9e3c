// Terminal: shows on stdout and stderr how a job goes.
#pragma once

#include "runtime/agent/view.h"

namespace holdfast::apps {

class Terminal final : public runtime::View {
 public:
  void say(const std::string& text) override;
  // One line, which the next call replaces; nothing where stdout is no terminal.
  void show(const wire::JobProgress& progress, std::size_t alive, std::int32_t local) override;
  void show(const runtime::JobEnd& end) override;
  void show_background(const std::string& job, pid_t process,
                       const std::string& log_directory) override;

 private:
  void show_log(const runtime::JobEnd& end);

  bool line_shown_ = false;
};

}  // namespace holdfast::apps
