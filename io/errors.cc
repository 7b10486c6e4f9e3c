#include "io/errors.h"

#include "base/text.h"

namespace holdfast::io {

Error system_error(std::string_view what, int error_number) {
  return system_error(what, std::error_code(error_number, std::system_category()));
}

Error system_error(std::string_view what, const std::error_code& code) {
  return Error{Blame::kWorld, cat(what, ": ", code.message())};
}

}  // namespace holdfast::io
