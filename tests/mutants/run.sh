#!/usr/bin/env bash
# Plants each bug of tests/mutants/*.patch in a copy of the sources, and has the simulation or a test look for it.
# usage: run.sh BUILD_DIR [NAME...]   BUILD_DIR has holdfast_sim and the tests built by Ninja; no names: all.
# The first line of a patch says what is wrong. A second line `found by: TEST OPTION...` names the test program that is to
# find it, and the options that it gets. Without that line it is the simulation.
# Exit code 0: every bug was found, and none is seen where none was planted.
set -uo pipefail
[ $# -ge 1 ] || { sed -n 2,6p "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
shift
schedules=${HOLDFAST_MUTANT_SCHEDULES:-500000}
seconds=${HOLDFAST_MUTANT_SECONDS:-60}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compile=(g++ -std=c++20 -O1 -w -ffp-contract=off -I. -Iinclude '-DHOLDFAST_VERSION="planted"')
command -v ccache > /dev/null && compile=(ccache "${compile[@]}")

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for file in "$root"/tests/mutants/*.patch; do names+=("$(basename "$file" .patch)"); done
fi
mkdir "$work/clean"  # The sources, and what is made of them.
for room in "$root"/*/CMakeLists.txt "$root/include/holdfast"; do cp -r "$(dirname "$room")" "$work/clean/"; done
cd "$work/clean" || exit 2

found_by() {  # name: its test program and the options, or nothing
  sed -n '2s/^found by: //p' "$root/tests/mutants/$1.patch"
}
patched() {  # name: the files that its patch changes
  sed -n 's,^+++ b/\([^[:space:]]*\).*,\1,p' "$root/tests/mutants/$1.patch"
}
object_of() {  # source
  echo "$1" | tr / _ | sed 's/$/.o/'
}
# ROOM.a: an object for each file of a room, whichever way the build has compiled them. Of a file that is linked as an
# object, nothing is taken from there.
library_of() {  # room
  local source
  [ ! -f "$1.a" ] || return 0
  for source in $(find "$1" -name '*.cc' ! -name '*_test.cc' ! -name '*_fuzz.cc' ! -name '*_main.cc' ! -path '*/testing/*'); do
    printf '%s\0%s\0' "$source" "$(object_of "$source")"
  done | xargs -0 -n 2 -P "$(nproc)" bash -c '"${@:1:$#-2}" -c "${@: -2:1}" -o "${@: -1}"' _ "${compile[@]}" || return 1
  ar rcs "$1.a" "$1"_*.o
}
link_simulation() {  # where to, objects
  g++ "${@:2}" "$build/sim/libholdfast_sim.a" "$build/wording/libholdfast_wording.a" "$work/clean/core.a" "$build/wire/libholdfast_wire.a" \
    "$build/os/libholdfast_os.a" "$build/base/libholdfast_base.a" -o "$1"
}
link_test() {  # test, where to, rooms, objects: as the build links it, but for these rooms and objects
  local line room rooms=$3
  line=$(ninja -C "$build" -t commands "bin/$1" | tail -1)
  line=${line/ -o bin\/$1 / -o $2 ${*:4} }
  for room in $rooms; do
    line=$(sed -E "s,(^| )$room/lib[a-z_]*\.a,\1$work/clean/$room.a,g" <<< "$line")
  done
  (cd "$build" && bash -c "$line")
}

simulation=() tests=()
for name in "${names[@]}"; do
  if [ -z "$(found_by "$name")" ]; then simulation+=("$name"); else tests+=("$name"); fi
done
if [ ${#simulation[@]} -gt 0 ]; then
  "${compile[@]}" -c sim/main.cc -o main.o && library_of core || exit 2
  link_simulation sim_clean main.o || exit 2
  if ! ./sim_clean --schedules 3000 > clean.txt; then
    cat clean.txt
    echo "the simulation finds a bug where none was planted"
    exit 1
  fi
fi
for name in "${tests[@]}"; do
  read -r -a test < <(found_by "$name")
  rooms=$(patched "$name" | cut -d/ -f1 | sort -u)
  for room in $rooms; do library_of "$room" || exit 2; done
  link_test "${test[0]}" "$PWD/${test[0]}" "$rooms" || exit 2
  if ! "./${test[0]}" "${test[@]:1}" > clean.txt 2>&1 || ! grep -q 'PASSED  . [1-9]' clean.txt; then
    tail -20 clean.txt
    echo "$name: '${test[*]}' tests nothing, or fails where no bug was planted"
    exit 1
  fi
done

simulate() {  # name: has the simulation look for it; sets what and when
  local again=() limit=$((${seconds%.*} + 30))
  link_simulation sim_mutant ../clean/main.o ./*.o || return 2
  timeout $limit ./sim_mutant --schedules "$schedules" --seconds "$seconds" > found.txt 2>&1
  code=$?
  if grep -q '^schedule ' found.txt; then  # What it says of how to replay that one is true.
    read -r -a again < <(grep -m1 -oE '\(sim [^)]*\)' found.txt | tr -d '()' | sed 's/ --shrink//') || again=(none)
    if timeout 60 ./sim_mutant "${again[@]:1}" >/dev/null 2>&1 || [ $? -ne 1 ]; then
      echo "UNCLEAR   $name: its failure can not be replayed by '${again[*]}'"
      return 1
    fi
  fi
  if [ $code -eq 0 ]; then  # Some need two faults at exact places: count through the small world.
    timeout $limit ./sim_mutant --exhaustive --seconds "$seconds" > found.txt 2>&1
    code=$?
  fi
  what=$(grep -m1 -oE '(violates|assert|S14).*' found.txt | cut -c1-90)
  when="schedule $(grep -m1 -oE '^schedule [0-9]+' found.txt | cut -d' ' -f2)"
}
run_test() {  # name: has its test look for it; sets what and when
  local test
  read -r -a test < <(found_by "$name")
  link_test "${test[0]}" "$PWD/test_mutant" "$rooms" "$PWD"/*.o || return 2
  (timeout 120 ./test_mutant "${test[@]:1}"; exit) > found.txt 2>&1  # So the shell's word of an abort goes there too.
  code=$?
  what=$(sed -n 's/^\[  FAILED  \] \([A-Za-z][^ ,]*\).*/\1/p' found.txt | head -1)
  when=${test[0]}
}
try() {  # name: says what became of it; fails if it survives
  local name=$1 patch="$root/tests/mutants/$1.patch" rooms room source code what when
  local compile
  read -r -a compile <<< "$compiler"
  rooms=$(patched "$name" | cut -d/ -f1 | sort -u)
  mkdir "$work/$name" && cd "$work/$name" && ln -s ../clean/*/ . || return 2
  for room in $rooms; do rm "$room" && cp -r "../clean/$room" . || return 2; done
  if ! patch -p1 -s -F3 < "$patch"; then
    echo "STALE     $name: the patch does not apply any more"
    return 1
  fi
  for source in $(patched "$name"); do
    "${compile[@]}" -c "$source" -o "$(object_of "$source")" || return 2
  done
  if [ -z "$(found_by "$name")" ]; then simulate; else run_test; fi || return
  if [ "$code" -eq 0 ]; then
    echo "SURVIVES  $name: $(head -1 "$patch")"
  elif [ -z "$what" ] && [ "$code" -ne 134 ]; then  # Neither a checker nor a test nor an assertion (SIGABRT) spoke.
    echo "UNCLEAR   $name: it ended with code $code: $(tail -1 found.txt | cut -c1-90)"
  else
    printf 'found     %-34s %-17s %s\n' "$name" "$when" "${what:-an assertion}"
    return 0
  fi
  return 1
}
export -f try simulate run_test found_by patched object_of link_test link_simulation
export root build work schedules seconds compiler="${compile[*]}"
# Each in a folder of its own, as many at once as there are cores.
printf '%s\0' "${names[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'try "$0" && echo "$0" >> "$work/found"'
found=$(cat "$work/found" 2>/dev/null | wc -l)  # Whose search was cut short is not among them.
echo "$found of ${#names[@]} planted bugs were found"
[ "$found" -eq ${#names[@]} ]
