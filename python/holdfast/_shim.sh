#!/bin/sh
# Starts one process of `holdfast run`: tells a worker its rank before any of its imports, as torchrun
# does, and lets the scheduler be served without importing the program.
#   _shim.sh PYTHON RESTARTS TOKEN PROGRAM [ARGUMENTS]
# Where no process has joined the job (holdfast.init(), or a kept state), the successor of a lost one
# does not run the program: it writes TOKEN into its log, with how the lost one ended, and the launcher
# starts all again. A spare waits until one has (_spare.py).
python=$1 restarts=$2 token=$3
shift 3
if [ "$MS_ROLE" = MS_SCHED ]; then
  # Only a program that sets TLS is run: up to its holdfast.init(), which serves.
  for word; do
    case $word in
      *.py) grep -qs 'set_ps_context(' "$word" && grep -qs 'enable_ssl' "$word" && exec "$@" ;;
    esac
  done
  exec "$python" -c 'import holdfast; holdfast.init()'
fi
attempt=${HOLDFAST_ATTEMPT:-1}
[ "$attempt" -gt 1 ] || attempt=1
# The attempts of a rehearsal are not those of its rank, which are not known here. All rehearsals have
# to be told the same: where the first finds other bits, the second must not differ from it.
[ -z "$HOLDFAST_REHEARSE" ] || attempt=1
if [ "$attempt" -gt 1 ] && [ -z "$HOLDFAST_SPARE_FD" ]; then
  joined=
  for file in "${HOLDFAST_LIFELINE%/*}/joined" "${HOLDFAST_LIFELINE%/*}"/rank-*.arena; do
    [ -e "$file" ] && joined=yes
  done
  if [ -z "$joined" ]; then
    echo "$token $HOLDFAST_PYTHON_PREDECESSOR"
    exec sleep 60 # The launcher ends it.
  fi
fi
# Where -r or -t tell them apart, standard output gets a log of its own, which is this one's otherwise.
if [ -n "$_HOLDFAST_APART" ]; then
  log=$(readlink "/proc/$$/fd/1")
  log=${log%.log}.stdout.log
  [ "$_HOLDFAST_APART$attempt" != begins1 ] || rm -f "$log"
  exec >>"$log"
  _HOLDFAST_STDOUT_LOG=$(stat -L -c %d:%i "/proc/$$/fd/1") # For _output.py.
  export _HOLDFAST_STDOUT_LOG
fi
unset TORCHELASTIC_ERROR_FILE # The launcher's own.
if [ "$MS_ROLE" = MS_WORKER ] && [ -n "$MS_NODE_ID" ]; then # A spare for any place has none yet.
  export RANK="$MS_NODE_ID" ROLE_RANK="$MS_NODE_ID"
  LOCAL_RANK=$MS_NODE_ID # On the host where the rank began, of those with so many each.
  while :; do
    for size in $_HOLDFAST_SIZES; do
      [ "$LOCAL_RANK" -lt "$size" ] && break 2
      LOCAL_RANK=$((LOCAL_RANK - size))
    done
  done
  export LOCAL_RANK TORCHELASTIC_ERROR_FILE="$_HOLDFAST_ERRORS/error_$RANK.json"
  [ -n "$HOLDFAST_SPARE_FD$HOLDFAST_REHEARSE" ] || rm -f "$TORCHELASTIC_ERROR_FILE"
fi
export TORCHELASTIC_RESTART_COUNT=$((restarts + attempt - 1))
export _HOLDFAST_RESTART_TOKEN="$token" # For torch/_register.py.
if [ -n "$HOLDFAST_SPARE_FD" ]; then
  exec "$python" -I "${0%/*}/_spare.py" "$token" "$@"
fi
exec "$@"
