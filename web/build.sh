#!/usr/bin/env bash
# Builds the page that plays without Python into FOLDER (build/web if none is given):
#
#     web/build.sh [FOLDER]
#
# It needs emscripten, CMake and Ninja. Look, panel and keys are those of the page of
# `python -m trainer.watch --web`, whose one file is taken apart.
set -euo pipefail
folder="$(realpath -m "${1:-"$(dirname "$0")/../build/web"}")"
cd "$(dirname "$0")/.."

for tool in emcmake cmake ninja; do
  command -v "$tool" >/dev/null || {
    echo "web/build.sh: $tool is missing: apt-get install emscripten cmake ninja-build" >&2
    exit 1
  }
done
# Where Debian keeps what emscripten needs, if another Node.js runs it.
export NODE_PATH="${NODE_PATH:+$NODE_PATH:}/usr/share/nodejs"
emcmake cmake -S . -B build/wasm -G Ninja -DCMAKE_BUILD_TYPE=Release -DMARIO_BUILD_PYTHON=OFF
cmake --build build/wasm --target core

page=trainer/film/page/index.html
mkdir -p "$folder/policies"
cp web/play.js build/wasm/core.js "$folder"
cp trainer/released/*.safetensors "$folder/policies"
sed -n '/^<style>/,/^<\/style>/{//!p}' $page >"$folder/viewer.css"
sed -n '/^<script>/,/^<\/script>/{//!p}' $page >"$folder/viewer.js"
scripts='<script src="core.js"><\/script><script src="play.js"><\/script><script src="viewer.js"><\/script>'
sed -e '/^<style>/,/^<\/style>/{/^<\/style>/r web/head.html' -e 'd}' \
  -e '/^<script>/,/^<\/script>/c'"$scripts" \
  -e '/^  <\/section>/{e cat web/controls.html' -e '}' $page >"$folder/index.html"
echo "web/build.sh: the page is $folder/index.html"
