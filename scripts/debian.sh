#!/bin/bash
# debian.sh [SUITE [STAGE...]]: scripts/demo.sh, and stages of scripts/test.sh, in a bare Debian or
# Ubuntu that scripts/bare.sh makes: trixie and the gcc stage if nothing else is said. COMPILERS is
# handed on to the stage of that name.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -u
. "$(dirname "$(readlink -f "$0")")/common.sh"

suite=${1:-trixie}
stages=("${@:2}")
[ ${#stages[@]} -gt 0 ] || stages=(gcc)
exec "$root/scripts/bare.sh" "$suite" sh -ec 'scripts/demo.sh; exec scripts/test.sh "$@"' sh "${stages[@]}"
