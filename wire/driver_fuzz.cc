// Feeds frame_fuzz where the compiler has no fuzzer: sample frames, damaged from a fixed seed.
//
// frame_fuzz [RUNS]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/prng.h"
#include "wire/frame.h"
#include "wire/samples_for_test.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using holdfast::Prng;

// The first byte of each input is the size of the pieces, and also the kind of message as which the
// rest is decoded.
std::vector<std::string> samples() {
  std::vector<std::string> found{std::string(1, '\0')};
  for (const auto& message : holdfast::wire::extreme_messages()) {
    const std::string whole = holdfast::wire::frame(message);
    found.push_back('\7' + whole + whole);
    found.push_back(whole.substr(5, 1) + whole.substr(holdfast::wire::kFrameHeaderBytes));
  }
  return found;
}

}  // namespace

int main(int count, char** arguments) {
  const long runs = count > 1 ? std::strtol(arguments[1], nullptr, 10) : 100'000;
  Prng random(1);
  const auto whole = samples();
  for (long run = 0; run < runs; ++run) {
    const auto bytes = holdfast::wire::mutate(whole[random.below(whole.size())], random);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("frame_fuzz: %ld inputs\n", runs);
  return 0;
}
