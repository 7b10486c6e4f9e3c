// Trace: one JSON line per event, for reports, tests and the trace checker. Off by default, then
// free.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "os/fd.h"

namespace holdfast::io {

// Copies share the file. Thread-safe: a line is one write(2) in append mode. A line that can not be
// written (a full disk) is dropped, because a trace must not disturb what it traces.
class Trace {
 public:
  struct Field {
    using Value = std::variant<std::int64_t, std::uint64_t, double, bool, std::string_view>;
    std::string_view name;
    Value value;

    template <class T>
    Field(std::string_view field_name, T&& field_value)  // NOLINT: implicit, in braces
        : name(field_name), value(value_of(field_value)) {}

   private:
    template <class T>
    static Value value_of(const T& value) {
      if constexpr (!std::integral<T> || std::same_as<T, bool>) {
        return value;
      } else if constexpr (std::signed_integral<T>) {
        return std::int64_t{value};
      } else {
        return std::uint64_t{value};
      }
    }
  };

  Trace() = default;  // Off.

  // Appends to <directory>/<role>-<host>-<pid>.jsonl (mode 0600): hosts may share the directory.
  // Makes a missing directory. The first event, "clock", says what this host's times count from. If
  // `directory` is empty, the trace is off.
  static Result<Trace> open_from(const std::string& directory, const std::string& role);

  [[nodiscard]] bool on() const { return file_ != nullptr; }

  // trace.event("step", {{"rank", 0}, {"step", 17}}) writes
  // {"t_ns":…,"event":"step","pid":…,"rank":0,"step":17}; t_ns is CLOCK_MONOTONIC. A number that is
  // not finite becomes null, and a byte that is no UTF-8 becomes U+FFFD.
  void event(std::string_view name, std::initializer_list<Field> fields = {}) const {
    if (on()) write(name, fields);
  }

 private:
  void write(std::string_view name, std::initializer_list<Field> fields) const;
  std::shared_ptr<const os::Fd> file_;
};

}  // namespace holdfast::io
