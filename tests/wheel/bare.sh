#!/bin/sh
# bare.sh: in a bare Debian or Ubuntu (scripts/bare.sh), installs the wheel of /dist by pip, runs check.py on the simulated driver
# of /dist/sim, then does the same with the Debian package if /dist has one that was made here.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null
. /etc/os-release
python3 -m venv /venv
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
