#!/bin/sh
# Build wheel and sdist with the Python $1, install only the wheel into new environments and use it there: without extras for
# tables, with [capture] for the whole demo. Neither the repository nor its environment is visible. Takes some minutes.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
constraints=$(pwd)/constraints.txt
index=$(scripts/setup.sh torch-index "$python")
out=build/dist
rm -rf "$out" && mkdir -p "$out"
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$out" .
"$python" -m hatchling build --target sdist --directory "$out"
wheel=$(cd "$out" && pwd)/$(ls "$out" | grep '\.whl$')
tar -tzf "$out"/*.tar.gz | grep -q '/src/qkscope/report/js/main.js$'

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
cd "$place"
# $1 an environment's name, $2 the extras to install.
fresh() {
    "$python" -m venv "$place/$1"
    # shellcheck disable=SC2086
    "$place/$1/bin/python" -m pip install --quiet -c "$constraints" $index "$wheel$2"
    "$place/$1/bin/python" -c "import qkscope; assert qkscope.__file__.startswith('$place/$1'), qkscope.__file__"
}

fresh bare ''
"$place/bare/bin/python" -c "
import importlib.util as known
assert not any(map(known.find_spec, ('torch', 'transformers', 'pytest'))), 'the environment is not bare'"
"$place/bare/bin/qkscope" --help >help.txt
printf 'model,layer,head,pc,r_q,r_k\n' >qk.csv
for step in 1 5; do for head in 0 1 2; do echo "step$step,0,$head,0,0.$step$head,0.2"; done; done >>qk.csv
"$place/bare/bin/qkscope" report qk.csv
test -s report.html
"$place/bare/bin/qkscope" figures qk.csv >figures.txt
test -s figures/01_position_signal/figure.png

fresh whole '[capture]'
"$place/whole/bin/qkscope" demo --out nano >demo.txt
tail -n 1 demo.txt
"$place/whole/bin/qkscope" status nano --verify >status.txt
tail -n 1 status.txt
echo "the wheel works: $(basename "$wheel")"
