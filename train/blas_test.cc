#include "train/blas.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace holdfast::train {
namespace {

std::string mapped(std::string_view path) {
  return cat("7f1200000000-7f1200020000 r-xp 00000000 fe:01 7654   ", path, "\n",
             "7f1200020000-7f1200030000 rw-p 00000000 00:00 0 \n");
}

TEST(Blas, IsTheReferenceOneWhereNothingElseIsMapped) {
  const std::string torch = mapped("/usr/lib/x86_64-linux-gnu/libtorch_cpu.so.2.6.0");
  const std::string reference = "/usr/lib/x86_64-linux-gnu/blas/libblas.so.3.12.1";
  EXPECT_EQ(reference_blas(torch + mapped(reference) + mapped("/opt/program")), reference);
  EXPECT_EQ(reference_blas(torch), "");
  EXPECT_EQ(reference_blas(""), "");
}

TEST(Blas, IsAnotherOneEvenBesideTheReference) {
  const std::string lib = "/usr/lib/x86_64-linux-gnu/";
  const std::string reference = mapped(lib + "blas/libblas.so.3.12.1");
  EXPECT_EQ(reference_blas(mapped(lib + "openblas-pthread/libblas.so.3")), "");
  EXPECT_EQ(reference_blas(reference + mapped(lib + "openblas-pthread/libopenblasp-r0.3.29.so")),
            "");
  EXPECT_EQ(reference_blas(mapped("/opt/intel/libmkl_core.so.2") + reference), "");
}

}  // namespace
}  // namespace holdfast::train
