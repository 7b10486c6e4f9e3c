#include "runtime/jobs/addresses_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/text.h"
#include "os/files.h"
#include "os/host.h"

namespace holdfast::runtime {
namespace {

TEST(AddressesFile, SaysWhatItsAgentHasHeard) {
  const auto directory = os::runtime_directory(cat("addresses-file-", ::getpid()));
  ASSERT_TRUE(directory);
  EXPECT_FALSE(read_addresses_file(*directory));
  const wire::Addresses said{
      .name = 7, .addresses = {{0, 0, "10.0.0.1"}}, .at = {0, 0}, .ports = {4000, 4001}};
  ASSERT_TRUE(write_addresses_file(*directory, said));
  EXPECT_EQ(read_addresses_file(*directory), said);
  for (const char* text : {"x", "\x08", "\x22\xff"}) {
    ASSERT_TRUE(os::write_file_atomically(cat(*directory, "/addresses"), text));
    EXPECT_FALSE(read_addresses_file(*directory)) << text;
  }
  ::unlink(cat(*directory, "/addresses").c_str());
  ::rmdir(directory->c_str());
  EXPECT_TRUE(write_addresses_file(*directory, said)) << "nobody is left who would read it";
}

}  // namespace
}  // namespace holdfast::runtime
