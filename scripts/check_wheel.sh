#!/bin/sh
# Build wheel and sdist, install the wheel into a clean environment and use it from there, away from the repository.
# Dependencies are taken from the environment that $1 is of: this checks what is packed, not what pip resolves.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
out=build/dist
rm -rf "$out" && mkdir -p "$out"
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$out" .
"$python" -m hatchling build --target sdist --directory "$out"
wheel=$(cd "$out" && pwd)/$(ls "$out" | grep '\.whl$')
tar -tzf "$out"/*.tar.gz | grep -q '/src/qkscope/report/js/main.js$'

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$python" -m venv "$place/venv"
"$place/venv/bin/python" -m pip install --quiet --no-deps --no-index "$wheel"
# A plain path entry: .pth files of that environment, such as an editable install's, are not followed.
PYTHONPATH=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export PYTHONPATH
cd "$place"
"$place/venv/bin/python" -c "import qkscope; assert qkscope.__file__.startswith('$place'), qkscope.__file__"
"$place/venv/bin/qkscope" --help > help.txt
printf 'model,layer,head,pc,r_q,r_k\n' > qk.csv
for step in 1 5; do for head in 0 1 2; do echo "step$step,0,$head,0,0.$step$head,0.2"; done; done >> qk.csv
"$place/venv/bin/qkscope" report qk.csv
test -s report.html
"$place/venv/bin/qkscope" figures qk.csv | tail -n 1
echo "the wheel works: $(basename "$wheel")"
