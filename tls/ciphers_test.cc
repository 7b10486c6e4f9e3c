// Cipher lists: what is used, what is named as nothing, what is refused as weak.
#include "tls/ciphers.h"

#include <gtest/gtest.h>

#include "tls/testing/papers.h"

namespace holdfast::tls {
namespace {

// As MindSpore's document has it, with its misprint.
constexpr const char* kOfTheDocument =
    "ECDHE-R SA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384:"
    "ECDHE-ECDSA-AES256-GCM-SHA384:DHE-RSA-AES128-GCM-SHA256:DHE-DSS-AES128-GCM-SHA256:"
    "DHE-RSA-AES256-GCM-SHA384:DHE-DSS-AES256-GCM-SHA384:DHE-PSK-AES128-GCM-SHA256:"
    "DHE-PSK-AES256-GCM-SHA384:DHE-PSK-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:"
    "ECDHE-PSK-CHACHA20-POLY1305:DHE-RSA-AES128-CCM:DHE-RSA-AES256-CCM:"
    "DHE-RSA-CHACHA20-POLY1305:DHE-PSK-AES128-CCM:DHE-PSK-AES256-CCM:ECDHE-ECDSA-AES128-CCM:"
    "ECDHE-ECDSA-AES256-CCM:ECDHE-ECDSA-CHACHA20-POLY1305";

TEST(Ciphers, OfTheDocumentAreTakenAndItsMisprintIsNamed) {
  const auto ciphers = check_ciphers(kOfTheDocument);
  ASSERT_TRUE(ciphers) << ciphers.error().what;
  EXPECT_EQ(ciphers->tls12,
            "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384:"
            "ECDHE-ECDSA-AES256-GCM-SHA384:DHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384:"
            "ECDHE-RSA-CHACHA20-POLY1305:DHE-RSA-AES128-CCM:DHE-RSA-AES256-CCM:"
            "DHE-RSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES128-CCM:ECDHE-ECDSA-AES256-CCM:"
            "ECDHE-ECDSA-CHACHA20-POLY1305");
  EXPECT_EQ(ciphers->tls13,
            "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:"
            "TLS_AES_128_CCM_SHA256");
  ASSERT_EQ(ciphers->warnings.size(), 2U);
  EXPECT_EQ(ciphers->warnings.front(),
            "cipher_list has 'ECDHE-R SA-AES128-GCM-SHA256', which is no cipher of this OpenSSL "
            "and counts for nothing; is 'ECDHE-RSA-AES128-GCM-SHA256' meant?");
  EXPECT_EQ(ciphers->warnings.back(),
            "cipher_list has ciphers that take a shared key or a DSA key in place of these "
            "certificates, and count for nothing: DHE-DSS-AES128-GCM-SHA256, "
            "DHE-DSS-AES256-GCM-SHA384, DHE-PSK-AES128-GCM-SHA256, DHE-PSK-AES256-GCM-SHA384, "
            "DHE-PSK-CHACHA20-POLY1305, ECDHE-PSK-CHACHA20-POLY1305, DHE-PSK-AES128-CCM, "
            "DHE-PSK-AES256-CCM");
}

TEST(Ciphers, OfAnEmptyListAreSound) {
  const auto ciphers = check_ciphers("");
  ASSERT_TRUE(ciphers) << ciphers.error().what;
  EXPECT_EQ(ciphers->tls12, kSoundCiphers);
  EXPECT_TRUE(ciphers->warnings.empty());
}

TEST(Ciphers, ThatAreWeakAreRefusedByName) {
  for (const char* weak :
       {"AES128-GCM-SHA256", "ECDHE-RSA-AES128-SHA", "ECDHE-ECDSA-AES128-CCM8", "RC4-SHA",
        "DES-CBC3-SHA", "NULL-SHA256", "ADH-AES256-GCM-SHA384", "AECDH-AES128-SHA",
        "PSK-AES128-GCM-SHA256", "TLS_AES_128_CCM_8_SHA256"}) {
    const auto ciphers = check_ciphers(std::string("ECDHE-RSA-AES256-GCM-SHA384:") + weak);
    ASSERT_FALSE(ciphers) << weak;
    EXPECT_TRUE(has(ciphers.error().what, std::string("weak ciphers: ") + weak + ". "));
  }
}

// OpenSSL would take these commands, and some of them lower its security level.
TEST(Ciphers, AreNamesAndNoCommands) {
  const auto ciphers = check_ciphers("ALL:@SECLEVEL=0:!aNULL:HIGH:ECDHE-RSA-AES256-GCM-SHA384");
  ASSERT_TRUE(ciphers) << ciphers.error().what;
  EXPECT_EQ(ciphers->tls12, "ECDHE-RSA-AES256-GCM-SHA384");
  EXPECT_EQ(ciphers->tls13, "TLS_AES_256_GCM_SHA384");
  EXPECT_EQ(ciphers->warnings.size(), 4U);
}

TEST(Ciphers, CanBeOfOneVersionAlone) {
  EXPECT_EQ(check_ciphers("ECDHE-ECDSA-AES256-CCM")->tls13, "");
  EXPECT_EQ(check_ciphers("TLS_AES_256_GCM_SHA384")->tls12, "");
  const auto none = check_ciphers("HIGH");
  ASSERT_FALSE(none);
  EXPECT_TRUE(has(none.error().what, "no cipher that can be used")) << none.error().what;
}

}  // namespace
}  // namespace holdfast::tls
