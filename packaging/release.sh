#!/usr/bin/env bash
# Trains policies for all levels and releases them, unless they are worse than the last
# release: a campaign, which also evaluates, and trainer.release.
#
#   packaging/release.sh MINUTES TO [LAST [FLAGS OF THE CAMPAIGN...]]
#   packaging/release.sh 60 hf://user/mario-all-levels
#   packaging/release.sh 2 my-release "" --levels 1-1,1-2
#
# TO is a folder or hf://user/name (HF_TOKEN, or hf auth login). LAST is the release
# before, a folder or released:all, the default; "" compares with none. The campaign is
# in runs/release; remove it before the next release, or run the same command again to
# resume it. Exits with 0 (released), 2 (refused: one line says why), or as the campaign.
set -euo pipefail
if (($# < 2)) || ! [[ $1 =~ ^[0-9]+$ && $1 -gt 0 ]]; then
  echo "release.sh: give MINUTES (1 or more) and TO, got '${*}'" >&2
  sed -n '6,8p' "$0" | cut -c3- >&2
  exit 2
fi
minutes="$1" to="$2" last="${3-released:all}"
shift $(($# < 3 ? 2 : 3))
campaign=runs/release
if [[ -e "$campaign" ]]; then
  python -m trainer.campaign --resume "$campaign"
else
  python -m trainer.campaign --run-dir "$campaign" --max-seconds $((60 * minutes)) "$@"
fi
python -m trainer.release "$campaign" --to "$to" ${last:+--last "$last"}
