#!/usr/bin/env bash
# Proves that README.md's two commands work on a machine that has nothing but
# Debian 13, python3 (3.13), python3-venv, python3-dev and g++: no libEGL, no
# libOpenGL, no git, no CMake. debootstrap makes that machine in a temporary
# folder; a copy of the working tree, uncommitted changes included and build
# outputs not, is installed there in an empty virtual environment, trained with
# for some seconds and tested.
#
#   tests/bare_machine.sh                      a short selection of the tests
#   tests/bare_machine.sh --all-tests          all of them
#   tests/bare_machine.sh --python-tests ARGS  pytest with ARGS (up to the end)
#   tests/bare_machine.sh --suite bookworm     another Debian (12: Python 3.11)
#   tests/bare_machine.sh --wheel FILE         no tree, compiler or headers there: install
#                                              FILE; its folder may have wheels that it needs
#   tests/bare_machine.sh --keep DIR           make it in a new DIR and leave it there
#   tests/bare_machine.sh --check              only say whether it can run here
#
# Needs root, debootstrap and 10 GB under ${TMPDIR:-/tmp}: where pip's settings name
# no other, torch is the one with CUDA. Debian's mirror is that of this machine's apt
# (or BARE_MACHINE_MIRROR), and all of pip's settings are this machine's, too. With
# BARE_MACHINE_CACHE=DIR the base system and pip's downloads are kept in DIR.
# Exits with 0 (passed), 1 (failed) or 77 (cannot run here; one line says why).
set -euo pipefail
TREE="$(cd "$(dirname "$0")/.." && pwd)"
PACKAGES=python3,python3-venv,python3-dev,g++ COMPILER=g++
SUITE=trixie WHEEL="" KEEP="" CHECK=""
TESTS=(tests/test_envpool_layer.py tests/envpool_api/test_contract.py
  tests/envpool_api/test_env.py tests/pool/test_envpool_contract.py)

arguments=("$@")
while (($#)); do
  case "$1" in
    --all-tests) TESTS=() ;;
    --python-tests) shift && TESTS=("$@") && break ;;
    --suite) SUITE="${2:?--suite wants a name}" && shift ;;
    --wheel) WHEEL="$(realpath -m "${2:?--wheel wants a file}")" && shift ;;
    --keep) KEEP="$(realpath -m "${2:?--keep wants a folder}")" && shift ;;
    --check) CHECK=1 ;;
    *) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
  esac
  shift
done
if [[ -n "$WHEEL" ]]; then
  [[ -f "$WHEEL" && "$WHEEL" == *.whl ]] || {
    echo "bare_machine.sh: --wheel $WHEEL is not a file that ends in .whl;" \
      "tests/wheels.sh builds wheels" >&2
    exit 2
  }
  PACKAGES=python3,python3-venv COMPILER=""
fi

refuse() {
  echo "bare_machine.sh: $1" >&2
  exit 77
}

# The mirror that apt has for Debian itself: no security updates, no backports.
mirror() {
  [[ -n "${BARE_MACHINE_MIRROR:-}" ]] && echo "$BARE_MACHINE_MIRROR" && return
  (. /etc/os-release && [[ "$ID" == debian ]]) || return 0
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' | awk '$2 !~ /[-\/]/ && $3 == "main" {print $1; exit}'
}

# Outside: makes the folder, runs this script again in namespaces of its own, where
# whatever it mounts and starts goes with it, and removes the folder.
if [[ -z "${BARE_MACHINE_INSIDE:-}" ]]; then
  [[ $(id -u) == 0 ]] || refuse "needs root, for debootstrap and chroot"
  command -v debootstrap >/dev/null || refuse "needs debootstrap (apt-get install debootstrap)"
  unshare --mount --pid --fork true 2>/dev/null || refuse "may not make a mount namespace here"
  [[ -n "$(mirror)" ]] || refuse "apt names no Debian mirror here; set BARE_MACHINE_MIRROR"
  [[ -z "$CHECK" ]] || exit 0
  [[ -z "$KEEP" || ! -e "$KEEP" ]] || refuse "$KEEP is there already"
  work="${KEEP:-$(mktemp -d -t bare-machine-XXXXXX)}"
  child=""
  end() {
    [[ -z "$child" ]] || { kill -KILL "$child" && wait "$child"; } 2>/dev/null || true
    [[ -n "$KEEP" ]] || rm -rf --one-file-system "$work"
  }
  trap end EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  BARE_MACHINE_INSIDE="$work" unshare --mount --pid --fork --kill-child \
    --propagation private "$0" "${arguments[@]}" &
  child=$!
  status=0
  wait "$child" || status=$?
  child=""
  exit "$status"
fi

# Inside, from here on.
ROOT="$BARE_MACHINE_INSIDE/root"
CACHE="${BARE_MACHINE_CACHE:+$(realpath -m "$BARE_MACHINE_CACHE")}"
SUMMARY=()

finish() {
  printf '\n--- Bare machine, %s (%d s)\n' "$SUITE" "$SECONDS"
  printf '%s\n' "${SUMMARY[@]}"
  exit "$1"
}
# step NAME COMMAND...: runs it; notes result and seconds; a failure is the end.
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

base_system() {
  local kept="${CACHE:+$CACHE/$SUITE${WHEEL:+-no-compiler}.tar}" proxy=""
  mkdir -p "$ROOT"
  if [[ -f "$kept" ]]; then
    tar -C "$ROOT" -xf "$kept"
    return
  fi
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  [[ -z "$proxy" ]] || export http_proxy="$proxy"
  debootstrap --variant=minbase --include="$PACKAGES" "$SUITE" "$ROOT" "$(mirror)" \
    >"$ROOT.log" 2>&1 || { tail -n 20 "$ROOT.log" && return 1; }
  [[ -z "$kept" ]] || { tar -C "$ROOT" -cf "$kept.new" . && mv "$kept.new" "$kept"; }
}

# What pip is told on this machine: its files of settings, and the files and folders
# that these and the environment name (wheels, constraints, certificates). The links of
# an index in a folder simple/ lead out of it.
pip_paths() {
  local pip=("${PYTHON:-python3}" -m pip config)
  "${pip[@]}" list >/dev/null 2>&1 || return 0
  "${pip[@]}" debug | sed -n 's/^  \(.*\), exists: True$/\1/p'
  { "${pip[@]}" list && printf '%s\n' "${ENVIRONMENT[@]}"; } |
    sed 's/\\n/ /g' | tr " ='\"" '\n' |
    sed -n 's,^file:///,/,; s,^\(/.*\)/simple/*$,\1,; /^\//p'
}
# Puts the file or folder in the same place there, read-only.
lend() {
  if [[ -d "$1" ]]; then mkdir -p "$ROOT$1"; else
    mkdir -p "$ROOT${1%/*}" && touch "$ROOT$1"
  fi
  mount --bind "$1" "$ROOT$1" && mount -o remount,bind,ro "$ROOT$1"
}
settings() {
  local path
  for path in sys dev; do mount --rbind "/$path" "$ROOT/$path"; done
  mount -t proc proc "$ROOT/proc"
  cp -L /etc/resolv.conf /etc/hosts "$ROOT/etc/"
  mkdir -p "$ROOT$HOME" "$ROOT/var/cache/pip"
  [[ -z "$CACHE" ]] || mount --bind "$CACHE/pip" "$ROOT/var/cache/pip"
  pip_paths | sort -u | while IFS= read -r path; do
    [[ ! -e "$path" ]] || { lend "$path" && echo "as on this machine: $path"; }
  done
}

copy() {
  mkdir "$ROOT$HOME/mario-envpool"
  cd "$TREE"
  awk '/^```python/ {on = 1; next} /^```/ && on {exit} on' README.md >"$ROOT$HOME/example.py"
  if [[ -n "$WHEEL" ]]; then
    mkdir "$ROOT$HOME/wheels"
    cp "${WHEEL%/*}"/*.whl "$ROOT$HOME/wheels/"
    return
  fi
  git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do [[ ! -e "$file" ]] || printf '%s\0' "$file"; done |
    tar --null -T - -cf - | tar -C "$ROOT$HOME/mario-envpool" --no-same-owner -xf -
}

# bare COMMAND: runs a line of bash there, in the tree and its virtual environment.
# pip tells of errors only: each index that a package is not in would be a line.
bare() {
  chroot "$ROOT" env -i "${ENVIRONMENT[@]}" HOME="$HOME" PIP_QUIET=2 \
    PATH="$HOME/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin" VIRTUAL_ENV="$HOME/venv" \
    bash -euo pipefail -c "cd ~/mario-envpool && $1"
}
nothing_but_python() {
  bare 'uname -srm && cat /etc/debian_version && python3 --version'
  if [[ -n "$COMPILER" ]]; then bare 'g++ --version | head -n 1'; else
    bare 'for name in c++ g++ gcc cc clang; do
      command -v $name && { echo "so this would prove nothing"; exit 1; }
    done
    echo "absent: every compiler"'
  fi
  bare 'for name in libEGL.so.1 libOpenGL.so.0; do
    python3 -c "import ctypes; ctypes.CDLL(\"$name\")" 2>/dev/null &&
      { echo "$name is here, so this would prove nothing"; exit 1; }
    echo "absent: $name"
  done'
}
imports() {
  bare 'python -c "import envpool" 2>&1 | tail -n 1 | sed "s/^/import envpool: /"' || true
  bare 'time python -c "import mario_envpool"'
}

mapfile -d '' ENVIRONMENT < <(env -0 | grep -zE \
  '^(PIP_\w+|(https?|all|no)_proxy|(HTTPS?|ALL|NO)_PROXY|SSL_CERT_FILE|REQUESTS_CA_BUNDLE)=')
if [[ -n "$CACHE" ]]; then
  mkdir -p "$CACHE/pip"
  ENVIRONMENT+=(PIP_CACHE_DIR=/var/cache/pip)
else
  ENVIRONMENT+=(PIP_NO_CACHE_DIR=1)
fi
TORCH="$(grep -om1 '^pip install torch==[0-9.]*' "$TREE/README.md")"
FIRST="$(sed -n 's/^\(pip install -e .*trainer.run\) *#.*/\1/p' "$TREE/README.md")"
[[ -z "$WHEEL" ]] || FIRST="${FIRST/-e ./--find-links ~/wheels ~/wheels/${WHEEL##*/}}"
SECOND="$(sed -n 's/^\(pip install -e .*pytest\) *#.*/\1/p' "$TREE/README.md")"

step "debootstrap $SUITE" base_system
step "settings of pip and network" settings
step "copy of the ${WHEEL:+wheel}${COMPILER:+tree}" copy
step "nothing but Python${COMPILER:+ and $COMPILER}" nothing_but_python
step "python3 -m venv" bare 'python3 -m venv ~/venv'
step "$TORCH" bare "$TORCH"
step "$FIRST" bare "$FIRST --max-seconds 10 && ls -l runs/*/checkpoints/"
step "python -m mario_envpool" bare 'python -m mario_envpool'
step "README's first example" bare 'python ~/example.py'
step "imports" imports
[[ -z "$WHEEL" ]] || finish 0
# README has plain pytest; a process for each core shortens it.
step "$SECOND" bare "$SECOND -n $(nproc) --dist loadfile ${TESTS[*]@Q}"
finish 0
