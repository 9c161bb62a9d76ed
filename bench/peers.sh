#!/usr/bin/env bash
# Makes the virtual environments of the peers that `bench/sps.py --peers` measures.
#
#   bench/peers.sh [DIRECTORY]
#
# DIRECTORY defaults to $MARIO_BENCH_PEERS, else ${XDG_CACHE_HOME:-~/.cache}/mario-envpool/peers.
# PYTHON selects the interpreter for the environments (default python3). For a peer that cannot
# be installed the script prints one line and does not fail; the bench reports it as missing.
#
# The peers have separate environments because gym-super-mario-bros 7.4.0 needs NumPy 1. EnvPool
# is a dependency of the project and needs no environment here.
set -u

root="${1:-${MARIO_BENCH_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/mario-envpool/peers}}"
python="${PYTHON:-python3}"

# make_peer NAME PROBE REQUIREMENT...: an environment under $root/NAME in which `PROBE` runs.
make_peer() {
  local name="$1" probe="$2"
  shift 2
  local venv="$root/$name" log="$root/$name.log"
  if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c "$probe" >/dev/null 2>&1; then
    echo "$name: ready in $venv"
    return
  fi
  rm -rf "$venv"
  if "$python" -m venv "$venv" >"$log" 2>&1 &&
    "$venv/bin/python" -m pip install --disable-pip-version-check "$@" >>"$log" 2>&1 &&
    "$venv/bin/python" -c "$probe" >>"$log" 2>&1; then
    echo "$name: installed in $venv"
  else
    echo "$name: NOT available, see the end of $log"
  fi
}

if ! mkdir -p "$root"; then
  echo "cannot create $root; give another directory as the first argument" >&2
  exit 1
fi

make_peer gsm 'import cv2, gym, gym_super_mario_bros, nes_py' \
  'gym-super-mario-bros==7.4.0' 'nes-py==8.2.1' 'gym==0.26.2' 'numpy<2' \
  'opencv-python-headless<4.12'
make_peer turbo 'import env_supermariobrosnes_turbo_emu' \
  'env-supermariobrosnes-turbo-emu==0.7.4'
