// What may fail returns a Result: a value, or an Error whose one sentence a person can act on.
//
// The names are those of std::expected, which GCC 12 does not have: one `using` will replace this.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/assert.h"

namespace holdfast {

// Who has to act: the user (settings, files, order of calls), the peer that sent nonsense, or the
// world (a full disk, a dead host).
enum class Blame : std::uint8_t { kUser, kPeer, kWorld };

// `what` is one sentence: what is wrong with which thing, and what to do. No prefix, no stack.
struct [[nodiscard]] Error {
  Blame blame = Blame::kWorld;
  std::string what;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit
  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(value()); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& value() {
    HF_ASSERT(has_value());
    return std::get<0>(state_);
  }
  const T& value() const {
    HF_ASSERT(has_value());
    return std::get<0>(state_);
  }
  [[nodiscard]] const Error& error() const {
    HF_ASSERT(!has_value());
    return std::get<1>(state_);
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit
  [[nodiscard]] bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  [[nodiscard]] const Error& error() const {
    HF_ASSERT(error_.has_value());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace holdfast
