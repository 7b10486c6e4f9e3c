// Every setting of Holdfast, in one table: the parser, its errors, and docs/settings.md come from
// it.
//
// Nothing else in Holdfast reads the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"

namespace holdfast::config {

enum class Role : std::uint8_t { kNone, kScheduler, kWorker, kServer };
enum class Drift : std::uint8_t { kEnd, kWarn };
// How often something is done: after so much time, or (if `steps` is not 0) after so many steps.
struct Every {
  Duration time{};
  std::uint64_t steps = 0;
};

inline constexpr Duration kNever = std::chrono::hours(24 * 365);  // "never ends", in practice
inline constexpr std::int64_t kMostWorkers = 10'000;              // collective::Group::kMaxRanks

// How a value is written. A row's lowest and highest are for kWhole and kSeconds.
enum class Kind : std::uint8_t {
  kRole,
  kText,
  kName,  // Becomes the name of files: letters, digits, '.', '_', '-'; at most 100.
  kFlag,
  kWhole,
  kBits,     // A whole number below 2^64.
  kSeconds,  // Decimals allowed; a negative number is kNever.
  kDrift,
  kEvery,    // A whole number of steps; or a time: 30s, 5min, 1h.
  kSecret,   // A password. Its value is not kept: see take_secret().
  kProcess,  // A process: pid, start time and PID namespace, with ':' between.
};

// Whether a password is set. Settings are copied and traced, so they never hold one.
struct Secret {
  bool given = false;
};

// X(field, type, kind, variable, default, lowest, highest, help). A default in parentheses is
// derived from others (see complete() in settings.cc).
#define HF_SETTINGS(X)                                                                            \
  X(role, Role, kRole, "MS_ROLE", "", 0, 0,                                                       \
    "What this process is; unset: it runs alone, without a launcher.")                            \
  X(sched_host, std::string, kText, "MS_SCHED_HOST", "127.0.0.1", 0, 0,                           \
    "Where the scheduler listens.")                                                               \
  X(sched_port, std::uint16_t, kWhole, "MS_SCHED_PORT", "8118", 1, 65535,                         \
    "The scheduler's port. Every job on a host has its own.")                                     \
  X(worker_num, std::int32_t, kWhole, "MS_WORKER_NUM", "(none)", 1, kMostWorkers,                 \
    "How many workers the job has, the same for all its processes. Required where MS_ROLE is "    \
    "set.")                                                                                       \
  X(server_num, std::int32_t, kWhole, "MS_SERVER_NUM", "0", 0, kMostWorkers,                      \
    "How many parameter servers the job has, the same for all its processes.")                    \
  X(node_id, std::string, kText, "MS_NODE_ID", "(random)", 0, 0,                                  \
    "Names this worker's place in the job, over restarts. The ranks are the names where those "   \
    "are 0 to MS_WORKER_NUM - 1; else they follow the order of host and name (w2 before w10).")   \
  X(enable_recovery, bool, kFlag, "MS_ENABLE_RECOVERY", "0", 0, 1,                                \
    "1: a scheduler started by hand takes back the journal of its predecessor.")                  \
  X(recovery_path, std::string, kText, "MS_RECOVERY_PATH", "", 0, 0,                              \
    "Where the scheduler keeps its journal; unset: in the job's runtime folder.")                 \
  X(topo_timeout, Duration, kSeconds, "MS_TOPO_TIMEOUT", "1800", 1, 31536000,                     \
    "How long the job waits for all its workers to come; `holdfast run`: for ever, if unset.")    \
  X(node_timeout, Duration, kSeconds, "MS_NODE_TIMEOUT", "30", 2, 31536000,                       \
    "Silence after which a worker counts as lost. Below 3 a busy host may lose one by mistake.")  \
  X(host_timeout, Duration, kSeconds, "HOLDFAST_HOST_TIMEOUT", "0.5", 0, 31536000,                \
    "Of a job over several hosts: the least silence of a host's agent and of all its workers "    \
    "after which the host counts as lost. 0: only MS_NODE_TIMEOUT counts.")                       \
  X(hang_timeout, Duration, kSeconds, "HOLDFAST_HANG_TIMEOUT", "0", 0, 31536000,                  \
    "How long all others may wait for a rank whose process lives before its agent ends and "      \
    "replaces it. 0: without a limit; the rank is only named. Set by msrun --hang_timeout.")      \
  X(allow_inject, bool, kFlag, "HOLDFAST_ALLOW_INJECT", "0", 0, 1,                                \
    "1: `holdfast inject` may have faults happen to this job. Set by msrun --allow_inject.")      \
  X(py_spy, std::string, kText, "HOLDFAST_PY_SPY", "", 0, 0,                                      \
    "The path of py-spy, which prints the stack of a Python process that holds up the others. "   \
    "Unset: the one in PATH; without any, only the stack of C++ functions is shown.")             \
  X(job, std::string, kName, "HOLDFAST_JOB", "(port-<MS_SCHED_PORT>)", 0, 0,                      \
    "The job's name; its runtime folder and its journal bear it. msrun draws one for a job "      \
    "of one host that is given none.")                                                            \
  X(incarnation, Incarnation, kBits, "HOLDFAST_INCARNATION", "(random)", 0, 0,                    \
    "Tells this process from its predecessors. Set by the agent.")                                \
  X(attempt, std::uint64_t, kBits, "HOLDFAST_ATTEMPT", "0", 0, 0,                                 \
    "Counts the processes that were given this place; 0: no agent. Set by the agent.")            \
  X(run, std::uint64_t, kBits, "HOLDFAST_RUN", "0", 0, 0,                                         \
    "This run of the job: no other's journal is taken back; 0: any one. Set by the agent.")       \
  X(agent, std::string, kProcess, "HOLDFAST_AGENT", "", 0, 0,                                     \
    "The agent's process, start time and PID namespace, with ':' between: its end ends this one " \
    "in the same namespace. Set by the agent.")                                                   \
  X(lifeline, std::string, kText, "HOLDFAST_LIFELINE", "", 0, 0,                                  \
    "The file by which the agent learns of this process's death at once. Set by the agent.")      \
  X(spare_fd, std::int32_t, kWhole, "HOLDFAST_SPARE_FD", "-1", -1, 1048576,                       \
    "The pipe on which a spare waits for its place; -1: not a spare. Set by the agent.")          \
  X(prepare, bool, kFlag, "HOLDFAST_PREPARE", "0", 0, 1,                                          \
    "1: a spare takes the memory of its state while it waits, as on a spare host. Set by the "    \
    "agent.")                                                                                     \
  X(trace, std::string, kText, "HOLDFAST_TRACE", "", 0, 0,                                        \
    "A folder that gets one line of JSON per event from every process; unset: no trace.")         \
  X(replacement_timeout, Duration, kSeconds, "HOLDFAST_REPLACEMENT_TIMEOUT", "600", 1, 31536000,  \
    "How long a lost worker's successor is waited for.")                                          \
  X(scheduler_timeout, Duration, kSeconds, "HOLDFAST_SCHEDULER_TIMEOUT", "(MS_TOPO_TIMEOUT)", 1,  \
    31536000, "How long a worker looks for the scheduler, at the start or after losing it.")      \
  X(update_threads, std::int32_t, kWhole, "HOLDFAST_UPDATE_THREADS", "1", 1, 16,                  \
    "Threads of the optimizer's update. The bits do not depend on it.")                           \
  X(protect, bool, kFlag, "HOLDFAST_PROTECT", "1", 0, 1,                                          \
    "0: the step is made without protection against faults, and the first fault ends the job. "   \
    "For benchmarks only.")                                                                       \
  X(etcd, std::string, kText, "HOLDFAST_ETCD", "", 0, 0,                                          \
    "etcd's members, `http://h1:2379,http://h2:2379`, or all with https://: the scheduler's "     \
    "journal and lease are there, and every host has a scheduler that stands by. Unset: the "     \
    "journal is a file, and the scheduler's host must live.")                                     \
  X(etcd_ca, std::string, kText, "HOLDFAST_ETCD_CA", "", 0, 0,                                    \
    "Of https://: the file (PEM) of the authorities that etcd's certificates are from. Unset: "   \
    "the system's.")                                                                              \
  X(etcd_cert, std::string, kText, "HOLDFAST_ETCD_CERT", "", 0, 0,                                \
    "Of https://: the file (PEM) of the certificate that this job proves itself to etcd with.")   \
  X(etcd_key, std::string, kText, "HOLDFAST_ETCD_KEY", "", 0, 0,                                  \
    "Its key: a file (PEM) of this user alone (mode 600).")                                       \
  X(etcd_lease, std::int32_t, kWhole, "HOLDFAST_ETCD_LEASE", "2", 2, 60,                          \
    "The seconds after which a scheduler that etcd no longer hears is replaced by another "       \
    "host's. Below 2 etcd does not go.")                                                          \
  X(standby, bool, kFlag, "HOLDFAST_STANDBY", "0", 0, 1,                                          \
    "1: this scheduler is not the job's first one. It waits for the lease of another. Set by "    \
    "the agent.")                                                                                 \
  X(replicas, std::int32_t, kWhole, "HOLDFAST_REPLICAS", "1", 0, 1,                               \
    "Of a job over several hosts, the same on all: on how many other hosts each rank's private "  \
    "state lies when a step is committed. 0: a lost host takes it along, and the job ends.")      \
  X(domain, std::string, kText, "HOLDFAST_DOMAIN", "", 0, 0,                                      \
    "Of a job over several hosts: what fails together with this host, such as its rack or its "   \
    "power feed. Private state is then held in another domain. Unset: the host alone.")           \
  X(drift, Drift, kDrift, "HOLDFAST_DRIFT", "end", 0, 0,                                          \
    "What happens when replicas are found to hold other values than one another. `end` gives a "  \
    "rank the values of most ranks, once, and ends the job where that does not help; `warn` "     \
    "names the first and goes on.")                                                               \
  X(digest_every, std::int32_t, kWhole, "HOLDFAST_DIGEST_EVERY", "0", 0, 1000000,                 \
    "After how many steps replicas are compared, the same on all ranks. 0: as often as takes a "  \
    "thousandth of the steps' time. They are also compared at a loop's end, and after each "      \
    "recovery.")                                                                                  \
  X(nursery, bool, kFlag, "HOLDFAST_NURSERY", "1", 0, 1,                                          \
    "0: msrun lets every process of a MindSpore program import MindSpore by itself, in place of " \
    "forking them from one that has.")                                                            \
  X(spare_share, std::int32_t, kWhole, "HOLDFAST_SPARE_SHARE", "10", 0, 100,                      \
    "The percentage of one processor that each spare may take from the training until it is "     \
    "ready for a place. 0: only what the training leaves.")                                       \
  X(rehearsing_spares, bool, kFlag, "HOLDFAST_REHEARSING_SPARES", "0", 0, 1,                      \
    "1: a spare of a MindSpore program runs the script beside the job, up to a first step. "      \
    "Set by msrun --rehearse.")                                                                   \
  X(rehearse, std::int32_t, kWhole, "HOLDFAST_REHEARSE", "-1", -1, kMostWorkers - 1,              \
    "The rank whose step this process makes again, beside the job; -1: none. Set by the agent.")  \
  X(rehearsals, bool, kFlag, "HOLDFAST_REHEARSALS", "1", 0, 1,                                    \
    "0: a job with spares does not rehearse its ranks.")                                          \
  X(rehearsal_interval, Duration, kSeconds, "HOLDFAST_REHEARSAL_INTERVAL", "300", 0, 31536000,    \
    "How long a host waits from one rehearsal to the next, once each of its ranks had one.")      \
  X(rehearsal_timeout, Duration, kSeconds, "HOLDFAST_REHEARSAL_TIMEOUT", "600", 1, 31536000,      \
    "How long a rehearsal may take.")                                                             \
  X(strict_rehearsals, bool, kFlag, "HOLDFAST_STRICT_REHEARSALS", "0", 0, 1,                      \
    "1: a rehearsal that finds other bits than its rank ends the job.")                           \
  X(rehearsal_bytes, std::uint64_t, kBits, "HOLDFAST_REHEARSAL_BYTES", "1073741824", 0, 0,        \
    "What the exchanges of a step may bring a rank, so that it is recorded for a rehearsal.")     \
  X(snapshot, std::string, kText, "HOLDFAST_SNAPSHOT", "", 0, 0,                                  \
    "A folder of this job, the same on all its hosts, into which the agents write snapshots of "  \
    "the whole job. Unset: none is made. Set by msrun --snapshot.")                               \
  X(snapshot_every, Every, kEvery, "HOLDFAST_SNAPSHOT_EVERY", "5min", 0, 0,                       \
    "How often a snapshot is made, if the one before is on the disk. The first is made after 30 " \
    "s at the latest. Set by msrun --snapshot_every.")                                            \
  X(snapshot_keep, std::int32_t, kWhole, "HOLDFAST_SNAPSHOT_KEEP", "2", 2, 1000,                  \
    "How many snapshots of the job are kept: the newest ones. Set by msrun --snapshot_keep.")     \
  X(grace, Duration, kSeconds, "HOLDFAST_GRACE", "25", 1, 31536000,                               \
    "How long a job that is told to end by a signal has for that, with a last snapshot. Then "    \
    "its processes are killed. Set by msrun --grace.")                                            \
  X(shutdown_timeout, Duration, kSeconds, "HOLDFAST_SHUTDOWN_TIMEOUT", "5", 0, 31536000,          \
    "How long processes that were asked to end (SIGTERM) have before they are killed; half of "   \
    "HOLDFAST_GRACE at most, where snapshots are made. Set by holdfast run --shutdown-timeout, "  \
    "where it is 30 if no snapshots are made.")                                                   \
  X(resume, std::string, kText, "HOLDFAST_RESUME", "", 0, 0,                                      \
    "Begin with the newest whole snapshot of this folder, or with this snapshot. auto: with the " \
    "newest in HOLDFAST_SNAPSHOT, if there is any. Unset: begin anew. Set by msrun --resume.")    \
  X(token_file, std::string, kText, "HOLDFAST_TOKEN_FILE", "", 0, 0,                              \
    "A file of this user alone (mode 600) whose first line is the job's token, by which its "     \
    "processes know one another. Unset: one is drawn, for the processes of one host.")            \
  X(door_connections, std::int32_t, kWhole, "HOLDFAST_DOOR_CONNECTIONS", "512", 1, 65536,         \
    "How many connections that have not proven that they belong to the job stand at the "         \
    "scheduler's door, at most; and a quarter of its descriptors.")                               \
  X(door_seconds, Duration, kSeconds, "HOLDFAST_DOOR_SECONDS", "5", 1, 3600,                      \
    "How long each of them may take to prove it.")                                                \
  X(tls_config, std::string, kText, "HOLDFAST_TLS_CONFIG", "", 0, 0,                              \
    "MindSpore's config.json: all connections of the job are under mutual TLS. Unset: they are "  \
    "in the clear. docs/security.md.")                                                            \
  X(tls_server_password, Secret, kSecret, "HOLDFAST_TLS_SERVER_PASSWORD", "", 0, 0,               \
    "The password of the server's certificate and key (server_cert_path).")                       \
  X(tls_server_password_file, std::string, kText, "HOLDFAST_TLS_SERVER_PASSWORD_FILE", "", 0, 0,  \
    "A file of this user alone (mode 600) whose first line is that password.")                    \
  X(tls_client_password, Secret, kSecret, "HOLDFAST_TLS_CLIENT_PASSWORD", "", 0, 0,               \
    "The password of the client's certificate and key (client_cert_path).")                       \
  X(tls_client_password_file, std::string, kText, "HOLDFAST_TLS_CLIENT_PASSWORD_FILE", "", 0, 0,  \
    "A file of this user alone (mode 600) whose first line is that password.")

struct Settings {
#define HF_FIELD(field, type, ...) type field{};
  HF_SETTINGS(HF_FIELD)
#undef HF_FIELD
  // The variable by which another launcher (mpirun) has told this process the world's size:
  // "OMPI_COMM_WORLD_SIZE=2". This is no setting of Holdfast.
  std::string other_launcher;
  std::int32_t other_size = 1;
};

// The table, for help and documents.
struct Row {
  std::string_view field;
  Kind kind = Kind::kText;
  std::string_view variable;
  std::string_view default_text;
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  std::string_view help;
};
std::span<const Row> table();

// The process that HOLDFAST_AGENT names. Within a PID namespace, pid and start time name one
// process for good.
struct ProcessName {
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;
  std::uint64_t pid_namespace = 0;
};
// Reads "PID:START_TIME:NAMESPACE"; nothing if the text is no such name.
std::optional<ProcessName> process_name(std::string_view text);

// The variables that msrun sets for each of its processes, whatever its own environment says.
std::span<const std::string_view> given_by_msrun();

// Takes the value of one of the secret variables out of the environment: no child inherits it,
// and /proc/self/environ shows it no more. Empty if it is not set. Call it before there are
// threads that look at the environment.
std::string take_secret(char** environment, std::string_view variable);

// The allowed values of `row`, in words: "a whole number from 1 to 65535".
std::string allowed(const Row& row);

// The text of docs/settings.md.
std::string markdown();

// Reads "NAME=value" strings up to a null pointer, as the variable `environ` has them. A
// variable that is set but empty counts as unset. Thread-safe as long as nobody changes the
// environment.
//
// Errors (Blame::kUser): a wrong value, naming the variable, the value and what is allowed; a
// HOLDFAST_ name that is not known, naming the nearest known one (HOLDFAST_TORCH, _PYTHON,
// _MINDSPORE, _TEST, _SEEDS, _CI and _BENCH, and names that go on from them with "_", are left
// alone); MS_ROLE without MS_WORKER_NUM.
Result<Settings> from_environment(const char* const* environment);

}  // namespace holdfast::config
