// HF_ASSERT: what must hold by our own logic. On in release; says where and ends the process.
#pragma once

namespace holdfast {
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);
}  // namespace holdfast

#define HF_ASSERT(condition)              \
  (static_cast<bool>(condition) ? void(0) \
                                : ::holdfast::assertion_failed(#condition, __FILE__, __LINE__))
