// Failure: the one exception of Holdfast's C++ interfaces.
#pragma once

#include <stdexcept>

namespace holdfast {

// An error that ends the training: a mistake of the user's, or a disk, host or scheduler that
// failed. what() is one sentence: what is wrong with which thing, and what to do. A fault that
// Holdfast recovers from is never thrown.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace holdfast
