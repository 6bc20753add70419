#!/bin/sh
# bare.sh: in a bare Debian or Ubuntu (scripts/bare.sh), installs the wheel of /dist by pip, runs check.py on the simulated driver
# of /dist/sim, then does the same with the Debian package if /dist has one that was made here.
set -eu
export DEBIAN_FRONTEND=noninteractive
python=python3
apt-get update -qq
python3 --version 2>/dev/null || apt-get install -y -qq --no-install-recommends python3 >/dev/null
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'; then # Ubuntu 20.04 has 3.8
    python=python3.9
fi
apt-get install -y -qq --no-install-recommends $python $python-venv >/dev/null
. /etc/os-release
$python -m venv /venv
/venv/bin/pip install --quiet --no-index /dist/libgpucache-*_"$(uname -m)".whl
/venv/bin/python tests/wheel/check.py /dist/sim
LD_LIBRARY_PATH=/dist/sim /venv/bin/gpucache run -- /venv/bin/python tests/wheel/app.py
if [ "${1:-}" = deb ]; then
    apt-get install -y -qq --no-install-recommends /dist/gpucache_*.deb >/dev/null
    cd /
    LD_LIBRARY_PATH=/dist/sim LD_PRELOAD=libgpucache.so GPUCACHE_REPORT=off /venv/bin/python "$OLDPWD/tests/wheel/app.py"
    gpucache --version
    apt-get remove -y -qq gpucache >/dev/null
    ! command -v gpucache
fi
echo "$PRETTY_NAME: the wheel${1:+ and the package} installed and ran"
