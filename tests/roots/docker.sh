# Builds examples/docker in a bare root as `docker build` does, and starts it as `docker run` does: its process is the
# first one of its namespace. tools/roots reads this file.
# shellcheck shell=bash disable=SC2154  # root, tree, environment, inside: tools/roots
TORCH=${1:-torch}
context=$(mktemp -d "$tree/build/context-XXXXXX")
trap 'rm -rf --one-file-system "$root" "$context"' EXIT
cp "$(wheel)" "$context"
patch -s -o "$context/train.py" "$tree/examples/pytorch/mlp.py" "$tree/examples/pytorch/mlp.diff"
chmod 644 "$context"/*
user=root folder=/ entry=() words=()
as_user() { inside setpriv --reuid "$user" --regid "$user" --init-groups env HOME="/home/$user" sh -c 'cd "$0"; exec "$@"' "$folder" "$@"; }
while read -r word rest; do
  case "$word" in
    '' | '#'* | FROM | ARG) ;;  # ARG: TORCH, which is given here.
    RUN) inside TORCH="$TORCH" sh -ec "$rest" >"$context/log" 2>&1 || { tail "$context/log" >&2; exit 1; } ;;
    ENV) environment+=("$rest") ;;
    USER) user=$rest ;;
    WORKDIR) folder=$rest ;;
    COPY)
      read -r from to <<<"$rest"
      to=$(realpath -m "/$folder/$to"); [[ $rest != *" /"* ]] || to=${rest##* }
      mkdir -p "$root$to"
      # shellcheck disable=SC2086
      (cd "$context" && cp $from "$root$to/") ;;
    ENTRYPOINT) mapfile -t entry < <(python3 -c 'import json, sys; print(*json.loads(sys.argv[1]), sep="\n")' "$rest") ;;
    CMD) mapfile -t words < <(python3 -c 'import json, sys; print(*json.loads(sys.argv[1]), sep="\n")' "$rest") ;;
    *) echo "roots: what is $word in the Dockerfile?" >&2; exit 1 ;;
  esac
done <"$tree/examples/docker/Dockerfile"
said "the Dockerfile's lines"

start() {  # WORD...: the container's command; $first: its process, as it is seen from here
  as_user "${entry[@]}" "$@" >"$context/said" 2>&1 & container=$!
  until first=$(pgrep -P "$(pgrep -P "$container" | head -1)" 2>/dev/null) && [ -n "$first" ] && grep -qa "holdfast" "/proc/$first/cmdline" 2>/dev/null; do
    kill -0 "$container" || { cat "$context/said" >&2; exit 1; }
    sleep 0.1
  done
}
look() { nsenter -t "$first" -m -p -r -w setpriv --reuid "$user" --regid "$user" --init-groups env -i "${environment[@]}" HOME="/home/$user" "$@"; }
version() { look holdfast status --json 2>/dev/null | python3 -c 'import json, sys; print(json.load(sys.stdin)["version"])' 2>/dev/null || echo 0; }
come_to() {  # VERSION
  until [ "$(version)" -ge "$1" ]; do kill -0 "$container" 2>/dev/null || { cat "$context/said" >&2; exit 1; }; done
}
ends_with() {  # CODE: of the container
  local code=0; wait "$container" || code=$?
  [ "$code" = "$1" ] || { echo "roots: the container ended with $code, not $1:" >&2; cat "$context/said" >&2; exit 1; }
}
rank_0() { look holdfast status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["ranks"][0]["pid"])'; }
zombies() { look sh -c 'cat /proc/[0-9]*/stat 2>/dev/null' | awk '{ sub(/.*\) /, "") } $1 == "Z" { n++ } END { print n + 0 }'; }

packages tini  # docker's --init.
for init in "" "tini --"; do
  # shellcheck disable=SC2206
  entry=($init "${entry[@]}")
  start "${words[@]}"
  come_to 60
  look sh -c "kill -9 $(rank_0)"
  come_to 200
  look sh -c "kill -9 $(rank_0)"
  come_to 300
  [ "$(zombies)" = 0 ] || { echo "roots: container${init:+ with --init}: processes are left as zombies after two kills" >&2; exit 1; }
  ends_with 0
  grep -h 'loss\|recover' "$context/said"
  start "${words[@]}"
  come_to 60
  kill -TERM "$first"
  ends_with 143
  echo "roots: container${init:+ with --init}: SIGTERM ended it with 143"
done
