"""Numbers that must not change: every measure of stored sums, beside the numbers that were frozen with them.

`tests/golden` has the sums of a small SmolLM3 (one layer with RoPE, one without; three groups of documents) and what
every measure made of them over two windows. After a change that is meant to move a number, or that adds a measure, run

    python tests/test_golden.py            # measure the stored sums again
    python tests/test_golden.py --sums     # after a change of the sums themselves: read the model again first

and say in the commit which numbers moved, and why.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from qkscope import store
from qkscope.measures.cell import Cell, measure_cell
from qkscope.measures.registry import chosen, groups, optional_names, sums_for, variables
from qkscope.sums import FactSum, KeySum
from qkscope.sums.unit import Unit

GOLDEN = Path(__file__).parent / "golden"
SUMS, NUMBERS = GOLDEN / "sums.safetensors", GOLDEN / "numbers.safetensors"
WINDOWS = (32, 96)
# Of the largest number of a variable. Left-out samples are solved approximately: a faster way may move them a little.
WHOLE, LEFT_OUT = 1e-12, 1e-6
# The model has no learned sink and no keys at such distances.
UNDEFINED = {"attn_learned_sink", "attn_recent256", "role_long_range"}


def ours() -> list:
    """The measures of the package: those of other installed packages have numbers of their own."""
    names = {name for name, group in groups().items() if group.compute is None or _inside(group.compute)}
    return [group for group in chosen(optional_names()) if group.name in names]


def _inside(function) -> bool:
    return function.__module__.startswith("qkscope.")


def read_units() -> list[Unit]:
    arrays, meta = store.read_tensors(SUMS)
    parts: dict[str, dict] = defaultdict(dict)
    for name, array in arrays.items():
        place, inner = name.rsplit("/", 1)
        parts[place][inner] = array
    kinds, units = sums_for(ours()), []
    for group in range(meta["groups"]):
        facts = FactSum.from_arrays(parts[f"{group}/facts"], meta["sums"][f"{group}/facts"])
        others = [
            kind.from_arrays(parts[f"{group}/{name}"], meta["sums"][f"{group}/{name}"], facts)
            for name, kind in kinds.items()
            if kind is not FactSum
        ]
        units.append(Unit.of(facts, *others))
    return units


def measured() -> dict[str, np.ndarray]:
    """By "window/variable". The axes are not among them: their signs are LAPACK's."""
    units = read_units()
    return {
        f"{window}/{name}": array
        for window in WINDOWS
        for name, array in measure_cell(Cell.of(units, window), ours()).arrays.items()
    }


def freeze_sums() -> None:
    """The sums of a small model of random weights. Larger than usual, so that attention is far from uniform."""
    import torch
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    from qkscope.capture import measure
    from qkscope.capture.architecture import read_architecture
    from qkscope.corpus import Document
    from qkscope.sums.head_index import HeadIndex, sample_heads

    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    shape |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = SmolLM3ForCausalLM(SmolLM3Config(**shape, no_rope_layers=[1, 0])).eval()
    draw = np.random.default_rng(0)
    documents = [
        Document(i, f"document {i}", draw.integers(0, 64, WINDOWS[-1] - i % 3, dtype=np.int32))
        for i in range(12)
    ]
    architecture = read_architecture(model.config)
    heads = HeadIndex.of(sample_heads(architecture.full_attention_layers, 4, None), architecture.gqa_ratios)
    arrays, meta = {}, {}
    for group in range(3):
        sums = {kind: {"keys": 2} if kind is KeySum else {} for kind in sums_for(ours()).values()}
        unit = measure(model, documents[group::3], heads=heads, windows=WINDOWS, sums=sums)
        for name, each in unit.sums.items():
            found, meta[f"{group}/{name}"] = each.to_arrays()
            arrays |= {f"{group}/{name}/{inner}": array for inner, array in found.items()}
    store.write_tensors(SUMS, arrays, {"groups": 3, "sums": meta})


@pytest.fixture(scope="module")
def old():
    return store.read_tensors(NUMBERS)[0]


@pytest.fixture(scope="module")
def new():
    return measured()


def test_every_measure_is_frozen(old, new):
    assert new.keys() == old.keys(), "run `python tests/test_golden.py`"
    finite = {name.split("/")[1] for name, array in old.items() if np.isfinite(array).any()}
    undefined = {variable.name for group in ours() for variable in group.variables} - finite
    assert undefined <= UNDEFINED


def test_numbers_do_not_change(old, new):
    moved = [name for name in sorted(old) if not same(name, old[name], new[name])]
    assert not moved


def same(name: str, old: np.ndarray, new: np.ndarray) -> bool:
    variable = variables().get(name.split("/")[1])  # None of the standard errors of a variable with dims
    largest = np.abs(old[np.isfinite(old)]).max(initial=0.0)
    if old.shape != new.shape:
        return False
    if variable is None:
        return close(old, new, LEFT_OUT * largest)
    if variable.sampled and not variable.dims:
        return close(old[0], new[0], WHOLE * largest) and close(old[1:], new[1:], LEFT_OUT * largest)
    return close(old, new, WHOLE * largest)


def close(old: np.ndarray, new: np.ndarray, atol: float) -> bool:
    return np.allclose(new, old, rtol=0, atol=atol, equal_nan=True)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    if "--sums" in sys.argv or not SUMS.exists():
        freeze_sums()
    store.write_tensors(NUMBERS, measured(), {})
    for path in (SUMS, NUMBERS):
        print(path, f"{path.stat().st_size:,} bytes")
