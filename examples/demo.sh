#!/usr/bin/env bash
# The README's first ten minutes, in a data folder of its own that is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

NSML_DATA="$(mktemp -d "${TMPDIR:-/tmp}/nsml-demo.XXXXXX")"
export NSML_DATA NSML_CONFIG_DIR="$NSML_DATA/config"

finish() {
  code=$?
  trap - EXIT INT TERM
  nsml down -y >/dev/null 2>&1 || true
  chmod -R u+w "$NSML_DATA"  # the caches of datasets and code are read-only
  rm -rf "$NSML_DATA"
  exit "$code"
}
trap finish EXIT INT TERM

show() {
  printf '\n$'
  for word in "$@"; do
    case "$word" in *[\ \*]*) printf ' "%s"' "$word" ;; *) printf ' %s' "$word" ;; esac
  done
  printf '\n'
  "$@"
}

# The machine's own GPUs; where there are none, two simulated ones, and every screen says so.
gpus=()
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  gpus=(--simulate-gpus 2)
fi

# Where there is a container engine, sessions run in containers of the default image.
if docker info >/dev/null 2>&1 && ! docker image inspect nsml-base:latest >/dev/null 2>&1; then
  if [ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null; then
    echo "making the default image nsml-base:latest (a minute or two the first time)"
    deploy/image/build >/dev/null || echo "it could not be made: nsml up says what is used instead" >&2
  fi
fi

show nsml up "${gpus[@]}"
show nsml dataset push digits examples/digits/data
cd examples/digits
show nsml run -d digits -g 1 -a "--epochs 20 --lr 0.1" -m "first try"
show nsml logs -f @last
show nsml plot @last --metric 'val/*' --chart
show nsml ps -a
show nsml model ls @last
show nsml gpustat
show nsml status
show nsml down -y
