// The C interface of Holdfast: all that a framework's face needs, and nothing of C++ in it.
//
// Compiled into libholdfast.so, which needs no framework and exports hf_* only.
//
// Errors. Every function that can fail returns an hf_status. After any but HF_OK and HF_PENDING,
// hf_last_error() is one sentence: what is wrong with which thing, and what to do. HF_USER, HF_PEER
// and HF_WORLD say who has to act. From a session's functions, except hf_register(), they mean that
// the job is over; but HF_USER for a wrong argument or a wrong order of calls changes nothing.
// Collectives also return HF_ABORTED, HF_LEFT and HF_MISMATCH: the step under way will be void.
// hf_begin_step() returns HF_LEFT, too.
//
// Threads. One thread at a time calls a session's functions. Collectives, and functions marked "any
// thread", may be called by any thread; two threads that use one group are served in turn. Hold no
// lock of yours during a call that may block (in Python: release the GIL). A signal does not end
// such a call; a fault of the job does.
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
#define HF_ABI_VERSION 4

typedef enum hf_status {
  HF_OK = 0,
  HF_USER = 1,     /* The caller has to act: settings, order of calls, arguments, files. */
  HF_PEER = 2,     /* Another process of the job does not do the same. */
  HF_WORLD = 3,    /* A disk, a host or the scheduler failed; or the job is over. */
  HF_ABORTED = 4,  /* Collectives: a fault ended the generation before this was complete. */
  HF_LEFT = 5,     /* Collectives, hf_begin_step(): a rank ended its training, and never comes. */
  HF_MISMATCH = 6, /* Collectives: the ranks' calls differ, or a rank found no room on tmpfs for its
                    * data; no data was exchanged. */
  HF_PENDING = 7   /* hf_wait: not yet complete. */
} hf_status;

typedef struct hf_worker hf_worker;
typedef struct hf_session hf_session;
typedef struct hf_group hf_group;

HF_API uint32_t hf_abi_version(void);
/* The sentence of this thread's last call that returned neither HF_OK nor HF_PENDING; "": there was
 * none. Valid until this thread's next call. */
HF_API const char* hf_last_error(void);

/* Call it before hf_start(). All connections between this process and its scheduler then use mutual
 * TLS, as with HOLDFAST_TLS_CONFIG (docs/security.md); so do those of a scheduler's process.
 * `config_path`: a config.json in MindSpore's form. A password that is NULL or empty is taken from
 * where the settings say. The caller may wipe the passwords after the return. HF_USER: a file or a
 * password is wrong (the sentence says which), or the environment or an earlier call names another
 * configuration. After HF_USER, hf_start() fails in a process of a job until a call succeeds: it
 * never connects in clear text instead. */
HF_API hf_status hf_set_tls(const char* config_path, const char* client_password,
                            const char* server_password);

/* ---- The worker: this process in its job -------------------------------------------------------
 * One per process. Call hf_start() in the main thread; it reads the environment (docs/settings.md).
 * With MS_ROLE=MS_SCHED it serves the job as its scheduler, and exits the process in the end.
 * Without MS_ROLE the process is alone: one rank, no scheduler. It does not wait for the rank, so a
 * spare runs its program up to hf_identity(). */
HF_API hf_status hf_start(hf_worker** worker);
/* Closes the connection to the scheduler. Close the worker's sessions and groups before. */
HF_API void hf_stop(hf_worker* worker);

HF_API int hf_is_solo(const hf_worker* worker);     /* 1: alone, without a scheduler. */
HF_API int hf_waits_spare(const hf_worker* worker); /* 1: hf_identity() would wait for a place. */
/* The rank for which this spare was started (--spares all). It is known at once, and stays the same
 * when the spare has its place. -1: a spare for any rank, or no spare. */
HF_API int32_t hf_bound_rank(const hf_worker* worker);

typedef struct hf_place {
  int32_t rank;
  int32_t world_size;
  uint64_t run_id;       /* Identifies this run of the job; the same in all its processes. */
  uint64_t attempt;      /* Counts the processes that had this place, from 1; 0: no agent. */
  const char* node_id;   /* This and the next two are valid until the next hf_identity(). */
  const char* directory; /* On tmpfs, the same for all ranks of a host. */
  const char* job;
} hf_place;
/* Waits for the rank. A spare waits here until it is needed; if the job ends without it, the
 * process exits with 0. A process that was started by hand while another one held its place exits
 * in the same way, if that one lives until the job has ended well. Later calls return at once. */
HF_API hf_status hf_identity(hf_worker* worker, hf_place* place);

/* This process's number among the ranks of its host, in rank order, from 0. Waits as hf_identity()
 * does. */
HF_API hf_status hf_local_rank(hf_worker* worker, int32_t* local_rank);

/* ---- Key-values of the job ---------------------------------------------------------------------
 * The scheduler keeps them until the job ends, also over its own restarts. All processes of the job
 * see the same ones; a waiting spare, too, before and after hf_open(). Any thread. Keys have at
 * most 256 bytes, values 16 MiB - 1 KiB; there is room for 100,000 keys and 256 MiB in all. A
 * process without a job (hf_is_solo()) has none. Not in a child of fork(). */

/* Puts the value if the key has none: the first value that is put stays. HF_OK: the key has a value
 * for good, this one or an earlier one. HF_USER: the key or the value is too long, or there is no
 * room. HF_WORLD: the job is over, or no scheduler answers. */
HF_API hf_status hf_kv_put(hf_worker* worker, const char* key, const void* value, uint64_t bytes);
/* Waits until one of the keys (at most 16) has a value, `milliseconds` at most (0: only looks;
 * negative: no limit). `which`: the index in `keys` of the first key that has a value. `value` is
 * valid until this thread's next hf_kv_get(), hf_kv_read() or hf_kv_wait(). `which`, `value` and
 * `bytes` may be NULL. HF_PENDING: no key has a value yet. At most 900 calls of a process wait at
 * once. If the scheduler is connected and does not answer, a look fails and a wait goes on. */
HF_API hf_status hf_kv_get(hf_worker* worker, const char* const* keys, uint64_t count,
                           int64_t milliseconds, uint64_t* which, const void** value,
                           uint64_t* bytes);

/* Values that change. Each value of a key has a version: 1, 2, ... (a put makes version 1). */
#define HF_ANY_VERSION UINT64_MAX

/* Sets the value if the key is at version `expected` (0: it has none; HF_ANY_VERSION: whichever).
 * `is_set`: 1 if the value was set. `version`: the key's version after the call. Both may be NULL.
 * The value is set once, even if the scheduler dies meanwhile. After HF_WORLD it may be set or not.
 * A step that is made again sets its values again: put, not set, what must be equal then. */
HF_API hf_status hf_kv_set(hf_worker* worker, const char* key, const void* value, uint64_t bytes,
                           uint64_t expected, int* is_set, uint64_t* version);
/* Like hf_kv_get() for one key, but only a version newer than `newer_than` counts (0: any).
 * `version` (may be NULL): the version of the value that was found. */
HF_API hf_status hf_kv_read(hf_worker* worker, const char* key, uint64_t newer_than,
                            int64_t milliseconds, const void** value, uint64_t* bytes,
                            uint64_t* version);

/* Within a step: waits until the key has a version newer than `newer_than` (0: any). HF_ABORTED:
 * the step will be void (hf_marked()), and the process that would set the value may be lost. */
HF_API hf_status hf_kv_wait(hf_worker* worker, hf_session* session, const char* key,
                            uint64_t newer_than, const void** value, uint64_t* bytes,
                            uint64_t* version);

/* Ends the job for all its processes, for this reason. Always HF_WORLD; hf_last_error() is what
 * this process should report. */
HF_API hf_status hf_fail(hf_worker* worker, const char* reason);

/* ---- The session: a state that outlives its process ------------------------------------------ */

typedef enum hf_optimizer { HF_SGD = 0, HF_MOMENTUM = 1, HF_ADAM = 2, HF_ADAMW = 3 } hf_optimizer;

typedef struct hf_parameter {
  const char* name;
  uint64_t elements; /* float32 */
} hf_parameter;

/* For hf_layout.flags. A rank that has no state copies it from another rank. Without a flag the
 * private bytes are copied, too; at version 0, all ranks take rank 0's. With this flag they are
 * not: each rank has its own, from version 0 on. In a job over several hosts, those of version 1
 * and later are kept on another host as well (HOLDFAST_REPLICAS); if they are lost all the same,
 * the job ends. */
#define HF_PRIVATE_OWN 1u
/* Instead of HF_PRIVATE_OWN: at version 0, all ranks take rank 0's private bytes. From version 1 on
 * each rank has its own, as above. */
#define HF_PRIVATE_OWN_LATER 2u
/* Besides one of them or none: the memory of private bytes is taken from /dev/shm by hf_take(), not
 * when the session is opened. So private_bytes may be the most that there will ever be. */
#define HF_PRIVATE_AS_USED 4u

/* Every rank has the same layout. Without parameters ("image mode"), all of the state is in private
 * bytes, which are kept whole for each version and rank. */
typedef struct hf_layout {
  const hf_parameter* parameters;
  uint64_t parameter_count;
  uint32_t optimizer; /* hf_optimizer */
  uint32_t flags;
  uint64_t private_bytes;
  /* With HF_PRIVATE_OWN: how many of the first private bytes are the same on all ranks, from
   * version 1 on. A rank that loses its state gets them from any other rank, so no step has to copy
   * them to another host. */
  uint64_t common_bytes;
} hf_layout;

/* A range of the private bytes. */
typedef struct hf_range {
  uint64_t offset;
  uint64_t bytes;
} hf_range;
#define HF_MOST_RANGES 8

/* The place in the data at which a version goes on. Holdfast keeps it, and does not interpret it.
 */
typedef struct hf_position {
  uint64_t epoch;
  uint64_t index;
  uint64_t samples;
} hf_position;

typedef struct hf_step {
  hf_position position; /* After this step. */
  double loss;          /* For status and traces only. */
  double learning_rate; /* This and the next five: the optimizer's arguments, named as PyTorch's. */
  double momentum;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
  uint64_t update_count; /* Adam, AdamW: this update's number, from 1. */
  /* The ranges of private bytes that are in use, ascending, at most HF_MOST_RANGES; none: all are.
   * Bytes outside need not be copied to another host: a successor there may find any values. */
  const hf_range* used;
  uint64_t used_count;
} hf_step;

/* Call it before hf_identity(), with the layout for hf_open(). A spare on a spare host allocates
 * the memory of the state now, so that it need not do so after a loss. Any other process does
 * nothing. */
HF_API hf_status hf_prepare(hf_worker* worker, const hf_layout* layout);
/* Waits for the rank; opens this rank's state as its predecessor left it. Once per worker. */
HF_API hf_status hf_open(hf_worker* worker, const hf_layout* layout, hf_session** session);
/* Close this session's groups before. Without hf_end() before, this rank counts as lost once its
 * process ends. */
HF_API void hf_close(hf_session* session);

HF_API int hf_fresh(hf_session* session);           /* 1: no version yet: fill version 0. */
HF_API uint64_t hf_version(hf_session* session);    /* Committed; UINT64_MAX if fresh. */
HF_API uint64_t hf_generation(hf_session* session); /* 0 before the first. */
/* The position of the committed version; zeros if fresh. */
HF_API hf_position hf_position_of(hf_session* session);
/* Any thread. 1: no group of all ranks has formed, or a fault has ended it. The step under way will
 * be void, unless all ranks had exchanged all of it. */
HF_API int hf_marked(hf_session* session);

/* Memory of the state; valid as long as the session, 128-byte aligned. `i`: the parameter's index
 * in the layout. `k`: 0 or 1, which of the optimizer's moments. `count` is in floats. */
HF_API hf_status hf_parameter_of(hf_session* session, uint64_t i, float** data, uint64_t* count);
HF_API hf_status hf_gradient_of(hf_session* session, uint64_t i, float** data, uint64_t* count);
HF_API hf_status hf_moment_of(hf_session* session, uint32_t k, uint64_t i, float** data,
                              uint64_t* count);
/* All gradients with the padding between them, which is zero and must stay so. hf_reduce() takes
 * ranges of this array. */
HF_API hf_status hf_gradients(hf_session* session, float** data, uint64_t* count);
/* The private bytes of `version`: hf_version() (committed, read only) or hf_version() + 1 (to be
 * filled before hf_end_step(); in a step, what follows such a call counts as writing the step down,
 * for `holdfast status` and drills). If fresh: version 0, to be filled. */
HF_API hf_status hf_private(hf_session* session, uint64_t version, void** data, uint64_t* bytes);
/* With HF_PRIVATE_AS_USED: takes the memory of a range of the private bytes of hf_version() + 1, or
 * of version 0 if fresh. Call it before the range is written to for the first time by this process,
 * for both places in which versions lie in turn; else a full /dev/shm may end the process. It costs
 * microseconds where the memory is there. HF_WORLD: there is no room. */
HF_API hf_status hf_take(hf_session* session, const hf_range* range);
/* Copies `bytes[i]` bytes from `from[i]` to `to[i]`, for each i < `count`; they must not overlap.
 * Large copies bypass the processor's caches. That is faster than memcpy() for data that is not
 * read again soon, such as private bytes. The copy is complete on return. Any thread. */
HF_API void hf_copy(uint64_t count, void* const* to, const void* const* from,
                    const uint64_t* bytes);
/* digests[i]: XXH3_64bits of the `bytes[i]` bytes at `data[i]`, the same on every machine. To see
 * whether ranks hold the same; not for secrets. Any thread; needs no session. */
HF_API void hf_digest(uint64_t count, const void* const* data, const uint64_t* bytes,
                      uint64_t* digests);

/* Agrees with the other ranks on a version and brings this rank's state to it. If no rank has a
 * version yet, all begin with rank 0's version 0: its parameters and moments, and private bytes as
 * the layout's flags say. `position`: that of version 0; NULL: zeros. Call it once. */
HF_API hf_status hf_join(hf_session* session, const hf_position* position);
/* In place of hf_join(), to fill version 0 only if it is needed. `to_fill` 1: fill it, and call
 * this again. 0: this rank has joined. A successor seldom has to fill it. */
HF_API hf_status hf_meet(hf_session* session, const hf_position* position, int* to_fill);
/* Begins a step. A step under way is given up on this rank, as if it had not begun, if it has no
 * hf_reduce() yet (else HF_USER). `reformed` (may be NULL): 1 if the group was formed anew; restore
 * from the private bytes. HF_LEFT: another rank's training has ended, so nothing can be exchanged
 * any more. No step is begun, but the session stays usable: the private bytes of hf_version() are
 * whole, and hf_end() may be called. */
HF_API hf_status hf_begin_step(hf_session* session, int* reformed);

/* A range of the committed version's private bytes that is the same on all ranks after each step,
 * such as a parameter of data-parallel training. `name` is for people. */
typedef struct hf_replica {
  const char* name;
  uint64_t offset;
  uint64_t bytes;
} hf_replica;
/* Says which replicas this rank holds, from the committed version on: the same names and sizes in
 * the same order on all ranks. 0: none. `step`: the number that people know hf_version() by. */
HF_API hf_status hf_replicas(hf_session* session, const hf_replica* replicas, uint64_t count,
                             uint64_t step);
/* Flips bit `bit` of byte `byte` of what the program trains on, of which replica number `replica`
 * of the last hf_replicas() is a copy. 1: it is flipped. */
typedef int (*hf_flip)(void* context, uint64_t replica, uint64_t byte, uint8_t bit);
/* For a program that trains on other memory than the committed version: says who flips a bit there
 * when somebody orders that (docs/drills.md). It is called within calls of this session, by the
 * thread that makes them. Holds from the next hf_replicas() on. Without it, the bit is one of the
 * committed version. */
HF_API void hf_flip_by(hf_session* session, hf_flip flip, void* context);
/* 1: it is time to compare (HOLDFAST_DIGEST_EVERY). All ranks ask right after each hf_begin_step()
 * and, with `at_end`, after the last step of a loop, before anything else is exchanged; even those
 * without replicas. Ranks of a generation get the same answer. */
HF_API int hf_comparison_due(hf_session* session, int at_end);
/* Call it if that says 1: compares the replicas, and gives a rank that holds other values those of
 * most ranks, or ends the job (HOLDFAST_DRIFT). `repaired`: one byte for each replica; 1: this
 * rank's has got other values, in hf_private(hf_version()). A fault meanwhile makes a step void
 * that was begun; the next generation compares again. HF_WORLD: the job is over. */
HF_API hf_status hf_compare_replicas(hf_session* session, uint8_t* repaired);
/* Any thread. Memory errors: SIGBUS at a page of the state, or of memory that is guarded here, puts
 * a page of zeros in its place and makes the step under way void; what the state had there comes
 * from another rank. Anywhere else SIGBUS ends the process, as without Holdfast. hf_guard() guards
 * the whole pages in `memory`, which has to be private to this process, and which the program fills
 * anew after each void step. 0: nothing is guarded (there is no whole page, or there are 4,096
 * guards). Call hf_unguard() before the memory is freed. hf_memory_lost(): how many pages of
 * guarded memory were lost so far. If there are more of them between two steps, the program has to
 * fill it anew as well. Call hf_uses_committed() when a version is made of the private bytes of the
 * committed one, and before they are restored at another time than when a function of this header
 * says so: otherwise lost pages of these bytes cost nothing, since the next version takes their
 * place. Whoever restores them while hf_pages_lost() grows may have read zeros: the next
 * hf_begin_step() says `reformed`, and they have to be restored once more. */
HF_API uint64_t hf_guard(void* memory, uint64_t bytes);
HF_API void hf_unguard(uint64_t guard);
HF_API uint64_t hf_memory_lost(void);
HF_API uint64_t hf_pages_lost(void); /* Those, and pages of the state. */
HF_API void hf_uses_committed(hf_session* session);
/* Call it once in each step, after hf_begin_step() and before the batch is used. 1: this step is
 * recorded for a rehearsal, or is a rehearsal (docs/rehearsals.md). Then hf_note() what the step
 * depends on and what it makes, in the same order and by the same names in all processes. */
HF_API int hf_sample(hf_session* session);
/* Any thread. Notes bytes by their digest; `name` is what people read: "the batch". Without effect
 * unless hf_sample() gave 1. An empty name: the notes that follow are results of the step's
 * exchanges, so what differs in what this rank gave to them is told first. A name that begins with
 * '?': it may differ from process to process, as a time does, and then it is not compared. */
HF_API void hf_note(hf_session* session, const char* name, const void* data, uint64_t bytes);
/* `on` 0: from now on, a rehearsal compares only the sizes of what this rank gives to exchanges. 1:
 * also the contents. For data that differs each time, such as measured times. */
HF_API void hf_compare_exchanges(hf_session* session, int on);
/* 1: this process only rehearses a rank's step, and takes no part in the job. Known right after
 * hf_start(). */
HF_API int hf_rehearses(hf_worker* worker);
/* For a process that rehearses, whose program does something else than the rank did. `what`: a
 * sentence that says how they differ. Ends the process. */
HF_API void hf_rehearsal_differs(hf_worker* worker, const char* what);
/* For a process that rehearses, whose program can not be rehearsed. `why`: a sentence. Ends the
 * process. */
HF_API void hf_rehearsal_skips(hf_worker* worker, const char* why);
/* Starts a sum over all ranks, in place: of `count` floats of hf_gradients(), from `offset` on. All
 * ranks start the same ranges in the same order. hf_end_step() waits for the sums. */
HF_API hf_status hf_reduce(hf_session* session, uint64_t offset, uint64_t count);
/* Ends step hf_version() + 1: commits it on all ranks, or on none. `is_void` (may be NULL) 1: a
 * fault came; restore from hf_private(hf_version()) and make the step again. The recovery from a
 * fault happens in this call. */
HF_API hf_status hf_end_step(hf_session* session, const hf_step* step, int* is_void);
/* The training ended well on this rank; waits until that is on record
 * (HOLDFAST_SCHEDULER_TIMEOUT at most). */
HF_API hf_status hf_end(hf_session* session);
/* For glibc's on_exit(hf_end_on_exit, session): calls hf_end() if the process ends with exit code 0
 * and is the one that opened the session, not a child of fork(). A session that was ended or closed
 * before is left alone. The worker of an open session must not be stopped before. Errors go to
 * stderr. */
HF_API void hf_end_on_exit(int status, void* session);

/* ---- Tables of parameter servers ----------------------------------------------------------------
 * A job with parameter servers (MS_SERVER_NUM) keeps tables there: rows of numbers by key, of which
 * a step reads and updates a few. docs/parameter-server.md tells what is promised. All workers
 * define the same tables in the same order, and then make the same calls in the same order; the
 * keys may differ. Calls come where collectives may, and end as they do. */
typedef enum hf_rule { /* table/rules.h has the formulas. */
                       HF_RULE_SGD = 0,
                       HF_RULE_MOMENTUM = 1,
                       HF_RULE_ADAGRAD = 2,
                       HF_RULE_ROW_ADAGRAD = 3, /* One accumulator for each row. */
                       HF_RULE_ADAM = 4,        /* Of the touched rows alone, as ADAMW. */
                       HF_RULE_ADAMW = 5,
                       HF_RULE_FTRL = 6
} hf_rule;

typedef enum hf_initial { HF_CONSTANT = 0, HF_UNIFORM = 1, HF_NORMAL = 2 } hf_initial;

typedef struct hf_table {
  const char* name;   /* For people; no two tables have the same. */
  uint32_t values;    /* Of a row: 1 to 4096. */
  uint32_t dtype;     /* HF_FLOAT32 or HF_BFLOAT16. Pulls and pushes are float32. */
  uint32_t rule;      /* An hf_rule. */
  uint32_t mindspore; /* 1: MindSpore's formula where it differs from PyTorch's. */
  uint32_t nesterov;  /* MOMENTUM */
  uint32_t initial;   /* An hf_initial: how a row begins that nobody has written: */
  double initial_a;   /* the constant, the lower limit, or the mean; */
  double initial_b;   /* the upper limit, or the standard deviation. */
  uint64_t seed;      /* It is a function of (seed, name, key) alone. */
  double momentum;    /* MOMENTUM */
  double beta1;       /* ADAM, ADAMW, as the next two. */
  double beta2;
  double epsilon; /* ADAGRAD, ROW_ADAGRAD, too. */
  double l1;      /* FTRL, as the next. */
  double l2;
  double initial_accumulator; /* ADAGRAD, ROW_ADAGRAD, FTRL */
} hf_table;

/* How many parameter servers the job has. */
HF_API int32_t hf_servers(const hf_worker* worker);
/* Between hf_open() and hf_join(). `number` is what the calls below call the table. HF_USER: the
 * description makes no sense, or the job has no servers. That workers describe their tables
 * differently is an error of hf_join(). */
HF_API hf_status hf_table_define(hf_session* session, const hf_table* table, uint64_t* number);
/* What the updates use from the step under way on; the same in all workers. Without a call: 0. */
HF_API hf_status hf_table_set(hf_session* session, uint64_t table, double learning_rate,
                              double weight_decay);
/* Has the step under way evict the rows whose last update was more than `steps` steps ago: they
 * begin anew when they are used again. Only steps with a push to the table count. The same in all
 * workers, after hf_begin_step(), which forgets what came before it. HF_USER: 0 steps. */
HF_API hf_status hf_table_evict(hf_session* session, uint64_t table, uint64_t steps);
/* Fills `rows` with the rows of `count` keys, as they are in hf_version(). A key may come several
 * times. */
HF_API hf_status hf_table_pull(hf_session* session, uint64_t table, const uint64_t* keys,
                               uint64_t count, float* rows);
/* Adds a gradient for each key to what this step does. Those of one key are summed: first each
 * worker's, in their order, then these sums in rank order; then those of a later push. HF_USER: one
 * is no finite number. */
HF_API hf_status hf_table_push(hf_session* session, uint64_t table, const uint64_t* keys,
                               uint64_t count, const float* gradients);
/* Has the step give rows their values: each row of these keys begins anew with them after it, with
 * the optimizer's state and Adam's count. For each key one worker gives the values. HF_USER: one is
 * no finite number, or this step has gradients for the table. */
HF_API hf_status hf_table_assign(hf_session* session, uint64_t table, const uint64_t* keys,
                                 uint64_t count, const float* rows);

/* The tables begin with the rows that a save has left in a folder which all servers' hosts see.
 * Between hf_open() and hf_join(), the same in all workers. A folder that can not be used ends the
 * job by name. */
HF_API hf_status hf_tables_load(hf_session* session, const char* folder);
/* Has the servers write the rows of hf_version() to a folder that all their hosts see: a
 * safetensors file for each table and server, and then a manifest, tables.json. All workers call it
 * alike, as hf_table_pull(); it returns once all is there. An older save in the folder stays whole
 * until this one is. HF_WORLD, for all workers: a file can not be written; names it. */
HF_API hf_status hf_tables_save(hf_session* session, const char* folder);

/* ---- Memory for sums ---------------------------------------------------------------------------
 * A sum of float32, float64, int32 or int64 over hf_world() copies nothing if its data lies in
 * registered memory on every rank: each rank adds up its share of the data and writes the result
 * into every rank's memory. Each rank registers what it likes, when it likes: with every sum the
 * ranks tell each other where their data lies. If a rank has not registered its data, or can not
 * map another rank's, the sum copies its data as it does elsewhere, with the same bits. So no call
 * is needed when a generation is formed anew, and a process that replaces another registers memory
 * of its own when it likes. Groups of hf_group_open() always copy. */

typedef struct hf_memory hf_memory;
/* Any time after hf_open(), any thread. `data` NULL: allocates page-aligned zeros. Else the pages
 * at `data` (a multiple of 4096) become shared, and keep their address and contents. Up to the end
 * of the last page they must be a mapping that the caller made (mmap(), not malloc()) and keeps
 * until hf_unregister(), and nobody may write there during the call. HF_WORLD: no room on tmpfs,
 * where the memory is taken at once. After an error nothing has changed.
 *
 * After a sum that ends with anything but HF_OK its data is undefined, and the other ranks may
 * write there until the next generation has formed. A child of fork() shares the memory: the parent
 * sees what it writes there. */
HF_API hf_status hf_register(hf_session* session, void* data, uint64_t bytes, hf_memory** memory);
HF_API void* hf_memory_data(const hf_memory* memory);
/* The descriptor of the memory's file, open until hf_unregister(): for a framework that passes its
 * memory on by descriptors. */
HF_API int hf_memory_file(const hf_memory* memory);
/* Any thread, also after hf_close(). No operation may use the memory, and nobody may write there,
 * during the call. Memory that hf_register() allocated is freed: who has its file mapped sees
 * zeros. Memory of the caller's becomes private again and keeps its contents; the other ranks keep
 * the file's memory until the next generation, or until sums have used 256 later registrations of
 * this rank. A file that is still registered when the process ends is removed with the job, or by
 * the replacement's hf_open(). */
HF_API void hf_unregister(hf_memory* memory);

/* ---- Collectives ------------------------------------------------------------------------------
 * A group is some ranks that exchange data under the session's generation: between hf_begin_step()
 * and hf_end_step(), all of them call the same operations in the same order. HF_OK on one rank
 * means that all ranks had called the operation. The ranks of one host all get HF_OK then; those of
 * other hosts may get HF_ABORTED. After anything but HF_OK, outputs are undefined (`data` of
 * hf_all_reduce(), too), and every later call on the group fails until the session has formed a new
 * generation; then the group works again by itself. */

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
  HF_AND = 4, /* HF_AND, HF_OR and HF_XOR: for whole numbers and bool only. */
  HF_OR = 5,
  HF_XOR = 6,
  HF_AVERAGE = 7 /* The sum, then divided by the group's size; floats only. */
} hf_op;

/* The group of all ranks. It belongs to the session: never close it. */
HF_API hf_group* hf_world(hf_session* session);
/* `ranks`: `count` different ranks in any order, this one among them; a rank's index in the list is
 * its rank in the group. `name`: letters, digits, '.', '_', '-', at most 60; the same in all
 * members, never used for another list. Returns at once; the members meet at the first operation of
 * each generation. */
HF_API hf_status hf_group_open(hf_session* session, const int32_t* ranks, uint64_t count,
                               const char* name, hf_group** group);
/* The same before hf_open(), without a session. Such a group is formed only once: after a fault
 * every call gives HF_ABORTED. The others do not wait for a replacement (hf_place.attempt > 1). */
HF_API hf_status hf_early_group_open(hf_worker* worker, const int32_t* ranks, uint64_t count,
                                     const char* name, hf_group** group);
HF_API void hf_group_close(hf_group* group); /* Ends what is under way. */
HF_API int32_t hf_group_rank(const hf_group* group);
HF_API int32_t hf_group_size(const hf_group* group);

/* An operation under way. Leave its buffers alone until it is complete: until hf_wait() has
 * returned anything but HF_PENDING. */
typedef struct hf_work hf_work;
/* Waits `milliseconds` at most (0: only looks; negative: until complete). Any thread. May be called
 * again, also for a complete operation. */
HF_API hf_status hf_wait(hf_work* work, int64_t milliseconds);
HF_API void hf_release(hf_work* work); /* Call it for each. Waits until it is complete. */

/* Every operation takes `work`. NULL: the operation runs in the caller's thread. Else it is
 * started, and *work is to be waited for; a thread of the group runs the started operations in
 * order. The call itself then reports wrong arguments only. */
HF_API hf_status hf_barrier(hf_group* group, hf_work** work);
HF_API hf_status hf_broadcast(hf_group* group, void* data, uint64_t bytes, int32_t root,
                              hf_work** work);
/* `all`: group size × `bytes`, in rank order. */
HF_API hf_status hf_all_gather(hf_group* group, const void* mine, uint64_t bytes, void* all,
                               hf_work** work);
/* A process of the job. Longer names are cut. */
typedef struct hf_host {
  int64_t pid;       /* On its own host. */
  char node_id[256]; /* MS_NODE_ID. */
  char host[256];
} hf_host;
/* A collective, so all ranks call it. Fills `hosts` (an entry for each rank, in rank order) with
 * the processes that are the group now. In a new generation a rank may have another process: call
 * it again. `worker`: the group's. */
HF_API hf_status hf_hosts(hf_worker* worker, hf_group* group, hf_host* hosts);
/* In place. Sums of float32, float64, int32 and int64 are fast. Nothing is copied if `data` lies in
 * hf_gradients() on all ranks, at the same offset, or in registered memory on all ranks. float16
 * and bfloat16 are reduced as float32 and rounded once; whole numbers wrap around. */
HF_API hf_status hf_all_reduce(hf_group* group, void* data, uint64_t count, hf_dtype dtype,
                               hf_op op, hf_work** work);
/* Like hf_all_reduce(), but reads `from`, which keeps its values and must not overlap `to`. Cheaper
 * than a copy and hf_all_reduce(). Some ranks may call the one and some the other. */
HF_API hf_status hf_all_reduce_into(hf_group* group, const void* from, void* to, uint64_t count,
                                    hf_dtype dtype, hf_op op, hf_work** work);
/* `all`: group size × `count` elements; `mine` gets the reduced block of this rank. */
HF_API hf_status hf_reduce_scatter(hf_group* group, const void* all, void* mine, uint64_t count,
                                   hf_dtype dtype, hf_op op, hf_work** work);
/* `send` holds a block for each rank, in rank order: `send_bytes[i]` bytes for rank i. `receive`
 * gets the block of each rank in the same way. Both arrays NULL: all blocks have `block_bytes`. */
HF_API hf_status hf_all_to_all(hf_group* group, const void* send, const uint64_t* send_bytes,
                               void* receive, const uint64_t* receive_bytes, uint64_t block_bytes,
                               hf_work** work);
/* The n-th send to a rank meets that rank's n-th receive from this one, whatever other operations
 * come between. Each of the two waits for the other. */
HF_API hf_status hf_send(hf_group* group, const void* data, uint64_t bytes, int32_t to,
                         hf_work** work);
HF_API hf_status hf_receive(hf_group* group, void* data, uint64_t bytes, int32_t from,
                            hf_work** work);
/* Like the two above, but the n-th send with a tag meets the n-th receive with the same tag. Tags
 * that are equal modulo HF_TAGS are the same. hf_send() and hf_receive() have tag 0. */
#define HF_TAGS 64
HF_API hf_status hf_send_tagged(hf_group* group, const void* data, uint64_t bytes, int32_t to,
                                uint32_t tag, hf_work** work);
HF_API hf_status hf_receive_tagged(hf_group* group, void* data, uint64_t bytes, int32_t from,
                                   uint32_t tag, hf_work** work);

#ifdef __cplusplus
}
#endif
