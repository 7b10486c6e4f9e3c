// set_tls(): how every face of Holdfast (C++, C, PyTorch, MindSpore) sets up a program's TLS.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "config/settings.h"

namespace holdfast::runtime {

// Makes this process connect, or serve, under TLS. Call it before either. See choose_tls() in
// runtime/jobs/tls_choice.h. The passwords may be wiped after the return.
Status set_tls(const config::Settings& settings, const std::string& config_path,
               std::string_view client_password, std::string_view server_password);

}  // namespace holdfast::runtime
