#!/bin/bash
# Starts a program as 8 workers and a scheduler on this host, by MS_* variables alone, and the
# scheduler again each time it is killed. Logs: worker_<i>.log and scheduler.log in $LOG_DIR or here.
# The exit code is the scheduler's: 0 where the job has ended well.
#
#   cmake --build build/release --target hello_cluster    # ./run builds it too
#   bash examples/hello_cluster.sh build/release/bin/hello_cluster --rounds 100 --period-ms 100
set -uo pipefail

if [ $# -eq 0 ]; then
  echo "usage: bash hello_cluster.sh PROGRAM [ARGUMENTS]" >&2
  exit 2
fi
program=("$@")
logs=${LOG_DIR:-.}
mkdir -p "$logs"

export MS_WORKER_NUM=${MS_WORKER_NUM:-8}     # How many workers the job has.
export MS_SCHED_HOST=127.0.0.1               # Where the scheduler is.
export MS_SCHED_PORT=${MS_SCHED_PORT:-8118}
export MS_ENABLE_RECOVERY=1                  # A scheduler that is started again goes on.

workers=()
for ((i = 0; i < MS_WORKER_NUM; i++)); do
  MS_ROLE=MS_WORKER MS_NODE_ID=$i "${program[@]}" >"$logs/worker_$i.log" 2>&1 &
  workers+=($!)
done

serve() {
  local code=137
  while [ $code -eq 137 ]; do  # kill -9
    MS_ROLE=MS_SCHED "${program[@]}" >>"$logs/scheduler.log" 2>&1
    code=$?
  done
  return $code
}
serve &
scheduler=$!

# A worker that was killed does not count: somebody may have started it again by hand. The scheduler
# knows whether all ranks have ended well.
wait "${workers[@]}"
wait "$scheduler"
