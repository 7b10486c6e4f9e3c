// set_ps_context(), which a program calls before it joins its job.
#include "holdfast/job.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace holdfast {
namespace {

TEST(PsContext, AWrongFileIsNamedAndThePasswordsAreWiped) {
  PsContext context{.config_file_path = "/nowhere/config.json",
                    .enable_ssl = true,
                    .client_password = "secret",
                    .server_password = "secret"};
  try {
    set_ps_context(std::move(context));
    ADD_FAILURE() << "nothing was said";
  } catch (const Failure& failure) {
    const std::string said = failure.what();
    EXPECT_NE(said.find("/nowhere/config.json"), std::string::npos) << said;
    EXPECT_EQ(said.find("secret"), std::string::npos) << said;
  }
  // Both passwords are wiped in place.
  EXPECT_EQ(context.client_password, std::string(6, '\0'));  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(context.server_password, std::string(6, '\0'));
  EXPECT_NO_THROW(set_ps_context({.config_file_path = "/nowhere/config.json"}));
}

}  // namespace
}  // namespace holdfast
