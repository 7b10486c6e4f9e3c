// The C interface of Holdfast: all that a framework's face needs, and nothing of C++ in it.
//
// Compiled into libholdfast.so, which needs no framework and exports hf_* only.
//
// Errors. Every function that can fail returns an hf_status. After any but HF_OK and HF_PENDING,
// hf_last_error() is one sentence: what is wrong with which thing, and what to do. HF_USER, HF_PEER
// and HF_WORLD say who has to act; from a session's functions, but for hf_register(), they mean
// that the job is over. The three outcomes HF_ABORTED, HF_LEFT and HF_MISMATCH come from
// collectives: the step will be void; HF_LEFT from hf_begin_step() too.
//
// Threads. A session is called by one thread at a time. Collectives, and what is marked "any
// thread", may be called by any; two threads that use one group are served one after the other.
// Functions that may block never hold a lock of the caller's (in Python: call them without the
// GIL). They do not return for signals, but a fault elsewhere ends them.
//
// The loop:
//   hf_start(&worker); hf_open(worker, &layout, &session); fill version 0 if hf_fresh(session);
//   hf_join(session, &position);
//   while (hf_version(session) < last) {
//     hf_begin_step(session, &reformed); if (reformed) restore from hf_private(hf_version());
//     compute; hf_reduce(...) or collectives; fill hf_private(hf_version() + 1);
//     hf_end_step(session, &step, &is_void); if (is_void) restore; the same step is made again
//   }
//   hf_end(session);
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HF_API __attribute__((visibility("default")))
#else
#define HF_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when something that existed changes its meaning or its form; additions leave it. */
#define HF_ABI_VERSION 3

typedef enum hf_status {
  HF_OK = 0,
  HF_USER = 1,     /* The caller has to act: settings, order of calls, arguments, files. */
  HF_PEER = 2,     /* Another process of the job does not do the same. */
  HF_WORLD = 3,    /* A disk, a host, a scheduler; or the job was ended, and why. */
  HF_ABORTED = 4,  /* Collectives: a fault ended the generation before this was complete. */
  HF_LEFT = 5,     /* A rank ended its training and will never come: collectives, steps. */
  HF_MISMATCH = 6, /* Collectives: the ranks asked for different things, or one has no room for what
                    * it has to show; no data was exchanged. */
  HF_PENDING = 7   /* hf_wait: not yet complete. */
} hf_status;

typedef struct hf_worker hf_worker;
typedef struct hf_session hf_session;
typedef struct hf_group hf_group;

HF_API uint32_t hf_abi_version(void);
/* Of the last function of this thread that returned neither HF_OK nor HF_PENDING; else "". Valid
 * until this thread's next call. */
HF_API const char* hf_last_error(void);

/* Before hf_start(): all connections of this process to its scheduler are under mutual TLS, as with
 * HOLDFAST_TLS_CONFIG (docs/security.md), also those of a scheduler's process. `config_path` names
 * the reference's config.json. A password that is NULL or empty comes from where the settings say.
 * The passwords may be wiped after the return. HF_USER: a file or a password is wrong, and which;
 * the environment or an earlier call names another configuration. After it, until a call succeeds,
 * hf_start() fails in a process of a job: it is not put in the clear instead. */
HF_API hf_status hf_set_tls(const char* config_path, const char* client_password,
                            const char* server_password);

/* ---- The worker: this process in its job -------------------------------------------------------
 * One per process, started in the main thread. Reads the environment (docs/settings.md). With
 * MS_ROLE=MS_SCHED it serves the job and the process exits in here. Without MS_ROLE the process is
 * a world of its own. Does not wait: a spare goes on with its program up to hf_identity(). */
HF_API hf_status hf_start(hf_worker** worker);
/* Hangs up. Its sessions and groups were closed before. */
HF_API void hf_stop(hf_worker* worker);

HF_API int hf_is_solo(const hf_worker* worker);     /* 1: a world of its own. */
HF_API int hf_waits_spare(const hf_worker* worker); /* 1: hf_identity() would wait for a place. */
/* The rank of a spare that was started for one (--spares all), known without waiting, also after it
 * has its place; -1: a spare for any rank, or no spare. */
HF_API int32_t hf_bound_rank(const hf_worker* worker);

typedef struct hf_place {
  int32_t rank;
  int32_t world_size;
  uint64_t run_id;       /* Of this run of the job; the same in all its processes. */
  uint64_t attempt;      /* Counts the processes that had this place, from 1; 0: no agent. */
  const char* node_id;   /* This and the next two are valid until the next hf_identity(). */
  const char* directory; /* On tmpfs, the same for all ranks of a host. */
  const char* job;
} hf_place;
/* Waits for the rank. A spare waits here until it is needed, and the process exits with 0 if the
 * job ends without it. So does a process that was started by hand while another one lived in its
 * place until the job had ended well. Later calls return at once. */
HF_API hf_status hf_identity(hf_worker* worker, hf_place* place);

/* The place of this process among the ranks of its host. Waits as hf_identity(). All ranks of a job
 * are on one host so far, so it is the rank. */
HF_API hf_status hf_local_rank(hf_worker* worker, int32_t* local_rank);

/* ---- Key-values of the job ---------------------------------------------------------------------
 * Kept by the scheduler until the job ends, over its own restarts too, and the same for every
 * process of the job: also for a spare that waits, and before and after hf_open(). Any thread. Keys
 * have at most 256 bytes, values 16 MiB - 1 KiB; there is room for 100,000 keys and 256 MiB in all.
 * A process without a job (hf_is_solo()) has none. Not in a child of fork(). */

/* The first value that is put under a key stays. HF_OK: the key has one for good, this or an
 * earlier one. HF_USER: there is no room, or it is too long. HF_WORLD: the job is over, or no
 * scheduler answers. */
HF_API hf_status hf_kv_put(hf_worker* worker, const char* key, const void* value, uint64_t bytes);
/* Waits `milliseconds` at most (0: only looks; negative: until there is one) for a value of any of
 * the keys, at most 16. `which`: the place in `keys` of the first one that has a value; `value` is
 * valid until this thread's next hf_kv_get() or hf_kv_read(). They may be NULL. HF_PENDING: there
 * is none yet. A process can have 900 calls wait at once. A wait outlasts a scheduler that is there
 * and silent. */
HF_API hf_status hf_kv_get(hf_worker* worker, const char* const* keys, uint64_t count,
                           int64_t milliseconds, uint64_t* which, const void** value,
                           uint64_t* bytes);

/* Values that change. Each value of a key has a version: 1, 2, ... (a put makes version 1). */
#define HF_ANY_VERSION UINT64_MAX

/* Sets the value if the key is at version `expected` (0: it has none; HF_ANY_VERSION: whichever).
 * `is_set`: whether it was; `version`: the key's by now, which is this value's if it is set. They
 * may be NULL. It is done once, also if the scheduler dies meanwhile. After HF_WORLD it may be done
 * or not. A step that is made again sets it again: what has to be equal then is put, not set. */
HF_API hf_status hf_kv_set(hf_worker* worker, const char* key, const void* value, uint64_t bytes,
                           uint64_t expected, int* is_set, uint64_t* version);
/* hf_kv_get() for one key, and only a version newer than `newer_than` counts (0: any). `version`
 * may be NULL: of the value that was found. */
HF_API hf_status hf_kv_read(hf_worker* worker, const char* key, uint64_t newer_than,
                            int64_t milliseconds, const void** value, uint64_t* bytes,
                            uint64_t* version);

/* Within a step: waits for a value of the key that is newer than `newer_than` (0: any).
 * HF_ABORTED: the step is void (hf_marked()), so whoever was to set it may have been lost. */
HF_API hf_status hf_kv_wait(hf_worker* worker, hf_session* session, const char* key,
                            uint64_t newer_than, const void** value, uint64_t* bytes,
                            uint64_t* version);

/* The job can not go on: tells everybody why. Always HF_WORLD, with what is to be reported here. */
HF_API hf_status hf_fail(hf_worker* worker, const char* reason);

/* ---- The session: a state that outlives its process ------------------------------------------ */

typedef enum hf_optimizer { HF_SGD = 0, HF_MOMENTUM = 1, HF_ADAM = 2, HF_ADAMW = 3 } hf_optimizer;

typedef struct hf_parameter {
  const char* name;
  uint64_t elements; /* float32 */
} hf_parameter;

/* For hf_layout.flags. A rank that has lost its state, or never had one, gets it from another rank;
 * without this flag, private bytes come along (at version 0: rank 0's on all ranks). With it they
 * do not: version 0 is each rank's own. A later one lies on another host too, in a job over several
 * (HOLDFAST_REPLICAS); if it is lost for all that, the job ends. */
#define HF_PRIVATE_OWN 1u
/* In its place: version 0 is rank 0's on all ranks, and comes along; a later one is each rank's
 * own, as above. */
#define HF_PRIVATE_OWN_LATER 2u

/* No parameters: "image mode"; all of the state is in private bytes, which are kept whole per
 * version and per rank. Every rank has the same layout. */
typedef struct hf_layout {
  const hf_parameter* parameters;
  uint64_t parameter_count;
  uint32_t optimizer; /* hf_optimizer */
  uint32_t flags;
  uint64_t private_bytes;
  /* With HF_PRIVATE_OWN: so many of the private bytes, from the first on, are the same on all ranks
   * from version 1 on. A rank that loses its state gets them from any other, and no step has to
   * bring them to another host. */
  uint64_t common_bytes;
} hf_layout;

/* Some of the private bytes. */
typedef struct hf_range {
  uint64_t offset;
  uint64_t bytes;
} hf_range;
#define HF_MOST_RANGES 8

/* Where in the data a version stands. Not interpreted. */
typedef struct hf_position {
  uint64_t epoch;
  uint64_t index;
  uint64_t samples;
} hf_position;

typedef struct hf_step {
  hf_position position; /* After this step. */
  double loss;          /* For status and traces only. */
  double learning_rate; /* The rest: of the layout's optimizer, as PyTorch names them. */
  double momentum;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
  uint64_t update_count; /* Adam, AdamW: this update's number, from 1. */
  /* Which of the private bytes mean anything, in order; none: all. The others need not go to
   * another host, and a successor there finds anything in them. At most HF_MOST_RANGES. */
  const hf_range* used;
  uint64_t used_count;
} hf_step;

/* Before hf_identity() and hf_open(), with the same layout: a spare on a spare host takes the
 * memory of the state already now, which it would have to after a loss. Any other process does
 * nothing. */
HF_API hf_status hf_prepare(hf_worker* worker, const hf_layout* layout);
/* Waits for the rank; opens this rank's state as its predecessor left it. Once per worker. */
HF_API hf_status hf_open(hf_worker* worker, const hf_layout* layout, hf_session** session);
/* Without hf_end() before, this rank counts as lost once its process ends. Groups of this session
 * were closed before. */
HF_API void hf_close(hf_session* session);

HF_API int hf_fresh(hf_session* session);           /* 1: no version yet: fill version 0. */
HF_API uint64_t hf_version(hf_session* session);    /* Committed; UINT64_MAX if fresh. */
HF_API uint64_t hf_generation(hf_session* session); /* 0 before the first. */
/* Of the committed version; zeros if fresh. */
HF_API hf_position hf_position_of(hf_session* session);
/* Any thread. 1: there is no whole generation now, so the step under way will be void (or, after
 * its exchange is complete, recovered from). */
HF_API int hf_marked(hf_session* session);

/* Memory of the state; valid as long as the session, 128-byte aligned; `count` is in floats. */
HF_API hf_status hf_parameter_of(hf_session* session, uint64_t i, float** data, uint64_t* count);
HF_API hf_status hf_gradient_of(hf_session* session, uint64_t i, float** data, uint64_t* count);
HF_API hf_status hf_moment_of(hf_session* session, uint32_t k, uint64_t i, float** data,
                              uint64_t* count);
/* All gradients with their padding (zeros, and must stay so): what hf_reduce() counts in. */
HF_API hf_status hf_gradients(hf_session* session, float** data, uint64_t* count);
/* The bytes of `version`: hf_version() (what was committed, read only) or hf_version() + 1 (to be
 * filled before hf_end_step()); if fresh, version 0 is to be filled. */
HF_API hf_status hf_private(hf_session* session, uint64_t version, void** data, uint64_t* bytes);
/* Copies `bytes[i]` bytes from `from[i]` to `to[i]`, which overlaps nothing. Much is written past
 * the processor's caches: in less time than memcpy() takes, for what is not read again soon, as
 * these bytes. Nothing of it is under way when it returns. Any thread. */
HF_API void hf_copy(uint64_t count, void* const* to, const void* const* from,
                    const uint64_t* bytes);
/* digests[i]: XXH3_64bits of the `bytes[i]` bytes at `data[i]`, the same on every machine. To see
 * whether ranks hold the same; not for secrets. Any thread; needs no session. */
HF_API void hf_digest(uint64_t count, const void* const* data, const uint64_t* bytes,
                      uint64_t* digests);

/* Agrees with the others on a version and brings this rank's state to it. Where nobody has one yet,
 * version 0 is rank 0's: parameters and moments, and private bytes as the flag says. Once. */
HF_API hf_status hf_join(hf_session* session, const hf_position* position);
/* The same, without a version 0 that is filled beforehand. `to_fill`: 1 if it is needed: fill it,
 * and call this again. 0: all have joined. A successor mostly needs none. */
HF_API hf_status hf_meet(hf_session* session, const hf_position* position, int* to_fill);
/* Before a step. One that is under way is given up, as if it had not begun, on this rank: if it has
 * no hf_reduce() yet. `reformed` (may be NULL): 1 if the group was formed anew: restore from
 * private. HF_LEFT: another rank's training has ended, so that nothing can be exchanged; no step is
 * begun, but the session goes on: what private holds is whole, and hf_end() may be called. */
HF_API hf_status hf_begin_step(hf_session* session, int* reformed);
/* 1: the step that has just begun is recorded for a rehearsal, or is one (docs/rehearsals.md): note
 * what it depends on and makes, in the same order and by the same names in all processes. Call it
 * once at the beginning of each step, before its batch is used. */
HF_API int hf_sample(hf_session* session);
/* Any thread. Notes bytes by their digest; `name` is what people read: "the batch". Without effect
 * unless hf_sample() gave 1. */
HF_API void hf_note(hf_session* session, const char* name, const void* data, uint64_t bytes);
/* 0: of what this rank gives to exchanges from now on, only the sizes are compared; 1: all again.
 * For what holds times or the like. */
HF_API void hf_compare_exchanges(hf_session* session, int on);
/* 1: this process only rehearses a rank's step, and takes no part in the job. Known before its
 * session. */
HF_API int hf_rehearses(hf_worker* worker);
/* In such a process: the program goes on otherwise than the rank did. `what`, a sentence, says how.
 * Ends the process. */
HF_API void hf_rehearsal_differs(hf_worker* worker, const char* what);
/* In such a process: the program can not be rehearsed. `why`, a sentence, says why. Ends the
 * process. */
HF_API void hf_rehearsal_skips(hf_worker* worker, const char* why);
/* Starts the sum over all ranks of a range of hf_gradients(), in floats, in place; the same ranges
 * in the same order on all ranks. Ends with hf_end_step(). */
HF_API hf_status hf_reduce(hf_session* session, uint64_t offset, uint64_t count);
/* Ends step hf_version() + 1. `is_void`: 1 if a fault voided it; it is to be made again, from what
 * private holds. A fault is recovered from in here. */
HF_API hf_status hf_end_step(hf_session* session, const hf_step* step, int* is_void);
/* The training ended well on this rank; waits until that is on record
 * (HOLDFAST_SCHEDULER_TIMEOUT at most). */
HF_API hf_status hf_end(hf_session* session);
/* For glibc's on_exit(hf_end_on_exit, session): does hf_end() if the process ends with exit code 0
 * and is the one that opened the session, not a child of fork(). A session that was ended or closed
 * before is left alone. Until then neither the session nor its worker is closed. What goes wrong is
 * said on stderr. */
HF_API void hf_end_on_exit(int status, void* session);

/* ---- Memory for sums ---------------------------------------------------------------------------
 * A sum of float32, float64, int32 or int64 over hf_world() moves no private copies if its data
 * lies in registered memory on every rank: each rank adds up its share and writes it into all of
 * them. Which memory that is, how much, and since when, is each rank's own affair, and may change
 * between any two operations: with every sum the ranks tell each other where it lies, and where one
 * has not registered it, or can not map another's, it is copied as otherwise, with the same bits.
 * So a generation that is formed anew, and a process that replaces another, need no call: the
 * replacement registers memory of its own when it likes. Groups of hf_group_open() copy. */

typedef struct hf_memory hf_memory;
/* Since hf_open(), in any phase. Any thread. `data` NULL: new memory of zeros, page-aligned. Else
 * the pages at `data` (a multiple of 4096) become shared; they keep address and contents. Up to the
 * end of the last page they have to be a mapping of the caller's own, whose addresses nobody else
 * gets before hf_unregister(), and nobody writes there during the call; memory of malloc() is not
 * that. HF_WORLD: no room (a file on tmpfs; its memory is taken at once); then nothing has changed.
 *
 * A sum that ends with anything but HF_OK leaves its data undefined, and the others may write there
 * until the next generation has formed. Children of fork() share the memory, as all that is mapped
 * so: what they write there the parent has. */
HF_API hf_status hf_register(hf_session* session, void* data, uint64_t bytes, hf_memory** memory);
HF_API void* hf_memory_data(const hf_memory* memory);
/* Its file, open until hf_unregister(): for a framework that hands its memory on by descriptors. */
HF_API int hf_memory_file(const hf_memory* memory);
/* Any thread, also after hf_close(); no operation on it is under way, and nobody writes there
 * during the call. New memory is gone: who has its file mapped sees zeros. Memory that was given is
 * private again, with its contents; the other ranks keep its file's until the next generation, or
 * until 256 of this rank's later ones were in sums. A file that is still registered when the
 * process ends goes with the job, or with the replacement's hf_open(). */
HF_API void hf_unregister(hf_memory* memory);

/* ---- Collectives ------------------------------------------------------------------------------
 * A group is some ranks that do things together, under the session's generation: between a
 * begin_step and its end_step, the same operations in the same order on all of them. What is
 * complete on one rank is complete on all. After anything but HF_OK, outputs are undefined (`data`
 * of hf_all_reduce too) and every later call on the group gives the same until the session has
 * formed a new generation; then the group works again by itself. */

typedef enum hf_dtype {
  HF_FLOAT32 = 0,
  HF_FLOAT64 = 1,
  HF_INT32 = 2,
  HF_INT64 = 3,
  HF_FLOAT16 = 4,
  HF_BFLOAT16 = 5,
  HF_INT8 = 6,
  HF_UINT8 = 7,
  HF_INT16 = 8,
  HF_BOOL = 9 /* One byte, 0 or 1; sum is "or". */
} hf_dtype;

typedef enum hf_op {
  HF_SUM = 0, /* ((r0 + r1) + r2) + ..., for each element, whatever the size and the path. */
  HF_PRODUCT = 1,
  HF_MIN = 2,
  HF_MAX = 3,
  HF_AND = 4, /* The three bit operations: whole numbers and bool. */
  HF_OR = 5,
  HF_XOR = 6,
  HF_AVERAGE = 7 /* The sum, then divided by the group's size; floats only. */
} hf_op;

/* All ranks. It belongs to the session; never closed. */
HF_API hf_group* hf_world(hf_session* session);
/* `ranks`: `count` different ranks in any order, this one among them; its place in the list is its
 * rank in the group. `name`: letters, digits, '.', '_', '-', at most 60; the same in all members,
 * never used for another list. Returns at once; the members meet at the first operation of each
 * generation. */
HF_API hf_status hf_group_open(hf_session* session, const int32_t* ranks, uint64_t count,
                               const char* name, hf_group** group);
/* The same without a session, for what a program does before it opens one. It is formed once and
 * never again: after a fault it stays HF_ABORTED. A replacement (hf_place.attempt > 1) is not
 * waited for by the others. */
HF_API hf_status hf_early_group_open(hf_worker* worker, const int32_t* ranks, uint64_t count,
                                     const char* name, hf_group** group);
HF_API void hf_group_close(hf_group* group); /* Ends what is under way. */
HF_API int32_t hf_group_rank(const hf_group* group);
HF_API int32_t hf_group_size(const hf_group* group);

/* An operation under way. Its memory belongs to it until it is complete, which is: hf_wait() gave
 * anything but HF_PENDING. Must be released, complete or not (then it is waited for). */
typedef struct hf_work hf_work;
/* Waits `milliseconds` at most (0: only looks; negative: until complete). Any thread; again too. */
HF_API hf_status hf_wait(hf_work* work, int64_t milliseconds);
HF_API void hf_release(hf_work* work);

/* Every operation takes `work`: NULL does it now, in the caller's thread; else it is started, runs
 * on a thread of the group's in the order of starting, and *work is to be waited for. Then only
 * wrong arguments are reported here. */
HF_API hf_status hf_barrier(hf_group* group, hf_work** work);
HF_API hf_status hf_broadcast(hf_group* group, void* data, uint64_t bytes, int32_t root,
                              hf_work** work);
/* `all`: group size × `bytes`, in rank order. */
HF_API hf_status hf_all_gather(hf_group* group, const void* mine, uint64_t bytes, void* all,
                               hf_work** work);
/* A process of the job. Longer names are cut. */
typedef struct hf_host {
  int64_t pid;       /* As its own host counts. */
  char node_id[256]; /* MS_NODE_ID. */
  char host[256];
} hf_host;
/* `hosts`: group size of them, in rank order. The processes that are the group now tell each other,
 * so all ranks call it, and again in a new generation, where a rank may have another process.
 * `worker`: that of the group. */
HF_API hf_status hf_hosts(hf_worker* worker, hf_group* group, hf_host* hosts);
/* In place. float32, float64, int32, int64 sums are fast; in hf_gradients() without a copy (there
 * on all ranks, at the same offset), and in what hf_register() gave. The small floats are added up
 * as float32 and rounded once; whole numbers wrap round. */
HF_API hf_status hf_all_reduce(hf_group* group, void* data, uint64_t count, hf_dtype dtype,
                               hf_op op, hf_work** work);
/* The same into `to`, out of `from`, which stays as it is and does not overlap `to`: cheaper than a
 * copy and hf_all_reduce(). Some ranks may call the one and some the other. */
HF_API hf_status hf_all_reduce_into(hf_group* group, const void* from, void* to, uint64_t count,
                                    hf_dtype dtype, hf_op op, hf_work** work);
/* `all`: group size × `count` elements; `mine` gets the reduced block of this rank. */
HF_API hf_status hf_reduce_scatter(hf_group* group, const void* all, void* mine, uint64_t count,
                                   hf_dtype dtype, hf_op op, hf_work** work);
/* Blocks of `send_bytes[i]` for rank i one after another, likewise for what is received. NULL for
 * both arrays: `block_bytes` each. */
HF_API hf_status hf_all_to_all(hf_group* group, const void* send, const uint64_t* send_bytes,
                               void* receive, const uint64_t* receive_bytes, uint64_t block_bytes,
                               hf_work** work);
/* Between two ranks of the group; the n-th send to a rank meets its n-th receive from this one,
 * whatever other operations do. Both wait for the other. */
HF_API hf_status hf_send(hf_group* group, const void* data, uint64_t bytes, int32_t to,
                         hf_work** work);
HF_API hf_status hf_receive(hf_group* group, void* data, uint64_t bytes, int32_t from,
                            hf_work** work);
/* The same, each tag by itself: the n-th send with a tag meets the n-th receive with it. Tags that
 * are equal modulo HF_TAGS count as one, as does 0 with the two above. */
#define HF_TAGS 64
HF_API hf_status hf_send_tagged(hf_group* group, const void* data, uint64_t bytes, int32_t to,
                                uint32_t tag, hf_work** work);
HF_API hf_status hf_receive_tagged(hf_group* group, void* data, uint64_t bytes, int32_t from,
                                   uint32_t tag, hf_work** work);

#ifdef __cplusplus
}
#endif
