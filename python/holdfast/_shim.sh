#!/bin/sh
# Starts one process of `holdfast run`: tells a worker its rank before any of its imports, as torchrun
# does, and lets the scheduler be served without importing the program.
#   _shim.sh PYTHON PROGRAM [ARGUMENTS]
if [ "$MS_ROLE" = MS_SCHED ]; then
  exec "$1" -c 'import holdfast; holdfast.init()'
fi
if [ "$MS_ROLE" = MS_WORKER ] && [ -z "$HOLDFAST_SPARE_FD" ]; then
  export RANK="$MS_NODE_ID" LOCAL_RANK="$MS_NODE_ID"
fi
exec "$@"
