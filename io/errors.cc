#include "io/errors.h"

#include "base/remedy.h"
#include "base/text.h"

namespace holdfast::io {

Error system_error(std::string_view what, int error_number) {
  return system_error(what, std::error_code(error_number, std::system_category()));
}

Error system_error(std::string_view what, const std::error_code& code) {
  return Error{Blame::kWorld, cat(what, ": ", code.message(), remedy_of(code.value()))};
}

Error no_task(std::string_view what, int error_number) {
  return Error{Blame::kWorld,
               cat(what, ": ", std::error_code(error_number, std::system_category()).message(),
                   remedy_of_no_task(error_number))};
}

}  // namespace holdfast::io
