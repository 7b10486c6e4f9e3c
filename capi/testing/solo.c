// A trainer in plain C, without a job: proof that c.h is C, and that the library needs nothing
// else. It moves w towards 8, and exits with 0 if the bits are right after three steps.
#include <holdfast/c.h>

#include <stdio.h>
#include <string.h>

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, hf_last_error());
  return 1;
}

static int step(hf_session* session, float* w, float* gradient, uint64_t count) {
  const uint64_t n = hf_version(session) + 1;
  int flag = 0;
  uint64_t bytes = 0;
  void* kept = NULL;
  const hf_step arguments = {.position = {.index = n}, .loss = 1.0, .learning_rate = 0.5};
  if (hf_begin_step(session, &flag) != HF_OK || flag != 0) return failed("hf_begin_step");
  for (uint64_t i = 0; i < count; ++i) gradient[i] = w[i] - 8.0F;
  if (hf_reduce(session, 0, count) != HF_OK) return failed("hf_reduce");
  if (hf_private(session, n, &kept, &bytes) != HF_OK) return failed("hf_private");
  memcpy(kept, &n, sizeof n);
  if (hf_end_step(session, &arguments, &flag) != HF_OK || flag != 0) return failed("hf_end_step");
  return 0;
}

int main(void) {
  const hf_parameter parameters[] = {{"w", 3}};
  const hf_layout layout = {.parameters = parameters,
                            .parameter_count = 1,
                            .optimizer = HF_SGD,
                            .private_bytes = sizeof(uint64_t)};
  hf_worker* worker = NULL;
  hf_session* session = NULL;
  hf_place place;
  float* w = NULL;
  float* gradient = NULL;
  uint64_t count = 0;
  if (hf_abi_version() != HF_ABI_VERSION) return failed("hf_abi_version");
  if (hf_start(&worker) != HF_OK) return failed("hf_start");
  if (hf_identity(worker, &place) != HF_OK || place.world_size != 1) return failed("hf_identity");
  if (hf_open(worker, &layout, &session) != HF_OK) return failed("hf_open");
  if (hf_begin_step(session, NULL) != HF_USER) return failed("a step before hf_join() was begun");
  if (hf_parameter_of(session, 0, &w, &count) != HF_OK || count != 3) return failed("hf_parameter");
  if (hf_gradient_of(session, 0, &gradient, &count) != HF_OK) return failed("hf_gradient");
  if (hf_join(session, NULL) != HF_OK) return failed("hf_join");
  for (int i = 0; i < 3; ++i) {
    if (step(session, w, gradient, count) != 0) return 1;
  }
  if (hf_version(session) != 3 || w[0] != 7.0F || w[2] != 7.0F) return failed("the result");
  if (hf_end(session) != HF_OK) return failed("hf_end");
  hf_close(session);
  hf_stop(worker);
  return 0;
}
