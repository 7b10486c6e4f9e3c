#!/usr/bin/env bash
# Plants each bug of tests/mutants/*.patch in a copy of core/ and lets the simulation look for it.
# usage: run.sh BUILD_DIR [NAME...]   BUILD_DIR has holdfast_sim built; no names: all.
# Exit code 0: every bug was found, and none is seen where none was planted.
set -uo pipefail
[ $# -ge 1 ] || { sed -n 2,4p "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
shift
schedules=${HOLDFAST_MUTANT_SCHEDULES:-500000}
seconds=${HOLDFAST_MUTANT_SECONDS:-60}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compile=(g++ -std=c++20 -O1 -w)
command -v ccache > /dev/null && compile=(ccache "${compile[@]}")
libraries=("$build/sim/libholdfast_sim.a" libcore.a "$build/base/libholdfast_base.a")

cp -r "$root/base" "$root/wire" "$root/core" "$root/sim" "$work/"
cd "$work" || exit 2
"${compile[@]}" -I. -c sim/main.cc -o main.o || exit 2
# An object for each file of core/, whichever way the build has compiled them.
for source in $(find core -name '*.cc' ! -name '*_test.cc'); do
  "${compile[@]}" -I. -c "$source" -o "$(echo "$source" | tr / _).o" || exit 2
done
ar rcs libcore.a core_*.o
# Of a file that is linked as an object nothing is taken from the library.
g++ main.o "${libraries[@]}" -o sim_clean || exit 2
if ! ./sim_clean --schedules 3000 > clean.txt; then
  cat clean.txt
  echo "the simulation finds a bug where none was planted"
  exit 1
fi

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for file in "$root"/tests/mutants/*.patch; do names+=("$(basename "$file" .patch)"); done
fi

try() {  # name: says what became of it; fails if it survives
  local name=$1 patch="$root/tests/mutants/$1.patch" objects=() again=() source object limit code what
  local compile libraries=("$build/sim/libholdfast_sim.a" ../libcore.a "$build/base/libholdfast_base.a")
  read -r -a compile <<< "$compiler"
  mkdir "$work/$name" && cd "$work/$name" && cp -r "$root/core" core && ln -s ../base ../wire ../sim . || return 2
  if ! patch -p1 -s -F3 < "$patch"; then
    echo "STALE     $name: the patch does not apply any more"
    return 1
  fi
  for source in $(sed -n 's,^+++ b/\([^[:space:]]*\).*,\1,p' "$patch"); do
    object="$(echo "$source" | tr / _).o"
    "${compile[@]}" -I. -c "$source" -o "$object" || return 2
    objects+=("$object")
  done
  g++ ../main.o "${objects[@]}" "${libraries[@]}" -o sim_mutant || return 2
  limit=$((${seconds%.*} + 30))
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
  if [ $code -eq 0 ]; then
    echo "SURVIVES  $name: $(head -1 "$patch")"
  elif [ -z "$what" ] && [ $code -ne 134 ]; then  # Neither a checker nor an assertion (SIGABRT) spoke.
    echo "UNCLEAR   $name: the simulation ended with code $code: $(tail -1 found.txt | cut -c1-90)"
  else
    printf 'found     %-32s schedule %-7s %s\n' "$name" \
      "$(grep -m1 -oE '^schedule [0-9]+' found.txt | cut -d' ' -f2)" "${what:-an assertion}"
    return 0
  fi
  return 1
}
export -f try
export root build work schedules seconds compiler="${compile[*]}"
# Each in a folder of its own, as many at once as there are cores.
printf '%s\0' "${names[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'try "$0" && echo "$0" >> "$work/found"'
found=$(cat "$work/found" 2>/dev/null | wc -l)  # Whose search was cut short is not among them.
echo "$found of ${#names[@]} planted bugs were found"
[ "$found" -eq ${#names[@]} ]
