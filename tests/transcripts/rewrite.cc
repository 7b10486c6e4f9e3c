#include "tests/transcripts/rewrite.h"

#include <gtest/gtest.h>

#include <string>

bool holdfast::transcripts::rewrite = false;

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  holdfast::transcripts::rewrite = argc > 1 && std::string(argv[1]) == "--rewrite";
  return RUN_ALL_TESTS();
}
