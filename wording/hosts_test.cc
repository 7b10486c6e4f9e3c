#include "wording/hosts.h"

#include <gtest/gtest.h>

#include <string>

namespace holdfast::wording {
namespace {

TEST(Hosts, WhatALostHostTakesAlongIsSaidInBytesThatPeopleRead) {
  EXPECT_NE(in_words(Cover::kHeld, 9'999).find("up to 9999 bytes"), std::string::npos);
  EXPECT_NE(in_words(Cover::kHeld, 12'345).find("up to 12.3 KB"), std::string::npos);
  EXPECT_NE(in_words(Cover::kNotHeld, 314'159'265).find("up to 314.2 MB"), std::string::npos);
  EXPECT_EQ(in_words(Cover::kNothingOwn, 5).find('5'), std::string::npos);
}

TEST(Hosts, WhoIsNotCoveredHearsWhatEndsTheJob) {
  for (const Cover cover : {Cover::kNotHeld, Cover::kOneHost}) {
    EXPECT_NE(in_words(cover, 1).find("end"), std::string::npos);
  }
  EXPECT_EQ(in_words(Cover::kHeld, 1).find("ends this job"), std::string::npos);
}

}  // namespace
}  // namespace holdfast::wording
