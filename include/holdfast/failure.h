// Failure: the one exception of Holdfast's C++ interfaces.
#pragma once

#include <stdexcept>

namespace holdfast {

// What ends a training: the user's error or the world's. what() is one sentence: what
// is wrong with which thing, and what to do. A fault that Holdfast recovers from is never one.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace holdfast
