"""Attention on excerpts: against the weights of the eager model, in files, and on the way to the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from report_data import Shape, make_results
from small_study import make_study
from test_attention import FAMILIES, attentions, eager
from test_capture import document, every_head

from qkscope import store
from qkscope.capture import measure
from qkscope.corpus import Document
from qkscope.results import load_results
from qkscope.results.examples import NAME, shown, spell
from qkscope.results.roles import ROLES
from qkscope.run import run
from qkscope.study import validate
from qkscope.sums import ExampleSum, FactSum
from qkscope.sums.excerpts import HEADS, KEYS, NO_KEY, NO_TOKEN, QUERIES, TOKENS, first_query, shown_heads
from qkscope.sums.unit import Unit

pytestmark = pytest.mark.usefixtures("one_thread")

# Half precision rounds a weight by at most 2^-11 of itself.
HALF = 2.0**-11


def excerpts(model: Any, documents: list[Document], count: int = 2) -> Unit:
    sums = {ExampleSum: {"documents": count}}
    return measure(model, documents, every_head(model, True), (150,), sums=sums, include_sliding=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_and_weights_are_the_eager_models(family: str) -> None:
    model = eager(family, **FAMILIES[family])
    # One padded batch.
    longest = 128 if family == "mpt" else 150
    documents = [document(i, n) for i, n in enumerate((longest, 90, 40, longest))]
    found = excerpts(model, documents, 3).get(ExampleSum)
    assert found.document.tolist() == [0, 1, 2]
    assert found.lengths.tolist() == [TOKENS, 90, 40]
    for at, each in enumerate(documents[:3]):
        n = int(found.lengths[at])
        assert found.tokens[at].tolist() == each.tokens[:n].tolist() + [NO_TOKEN] * (TOKENS - n)
        expected = np.concatenate(attentions(model, each, n))[
            :, first_query(n) :, :n
        ]  # (heads, queries, keys)
        count = expected.shape[1]
        key, weight = found.key[at, :, :count], found.weight[at, :, :count].astype(np.float64)
        # The weights of the keys named, which are the largest there are, largest first.
        named = np.take_along_axis(expected, np.where(key == NO_KEY, 0, key), axis=2)
        np.testing.assert_allclose(weight, np.where(key == NO_KEY, 0.0, named), rtol=1.01 * HALF, atol=1e-6)
        np.testing.assert_allclose(
            weight, -np.sort(-expected, axis=2)[..., :KEYS], rtol=1.01 * HALF, atol=1e-6
        )
        learned = np.maximum(0.0, 1.0 - expected.sum(axis=2))
        np.testing.assert_allclose(found.sink[at, :, :count], learned, atol=1e-3)
        assert (found.key[at, :, count:] == NO_KEY).all()
        # No key twice.
        ordered = np.sort(key.astype(np.int64), axis=2)
        assert ((np.diff(ordered, axis=2) > 0) | (ordered[..., 1:] == NO_KEY)).all()


def test_units_give_the_same_bytes_in_any_order() -> None:
    model = eager("smollm3")
    documents = [document(i, n) for i, n in enumerate((150, 90, 40, 150, 150))]
    together = excerpts(model, documents, 3).get(ExampleSum)
    parts = [
        excerpts(model, [documents[i] for i in some], 3).get(ExampleSum) for some in ((2, 3), (0,), (1, 4))
    ]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        merged = parts[order[0]].merge(parts[order[1]]).merge(parts[order[2]])
        assert store.dump_tensors(*merged.to_arrays()) == store.dump_tensors(
            *together.window(150).to_arrays()
        )


def test_no_excerpt_in_a_unit_of_later_documents() -> None:
    unit = excerpts(eager("llama"), [document(7, 60)])
    assert len(unit.get(ExampleSum).document) == 0
    assert unit.get(ExampleSum).weight.shape == (0, len(unit.heads), QUERIES, KEYS)


def test_a_file_is_read_back_and_damage_is_noticed() -> None:
    unit = excerpts(eager("llama"), [document(i, 100) for i in range(2)])
    facts, made = unit.get(FactSum), unit.get(ExampleSum)
    arrays, meta = made.to_arrays()
    again = ExampleSum.from_arrays(arrays, meta, facts)
    assert store.dump_tensors(*again.to_arrays()) == store.dump_tensors(arrays, meta)
    wrong = {
        "document": arrays["document"][::-1].copy(),
        "tokens": np.where(arrays["tokens"] == NO_TOKEN, -2, arrays["tokens"]),
        "key": np.where(arrays["key"] == arrays["key"].max(), 101, arrays["key"]).astype(np.uint8),
        "weight": arrays["weight"] * np.float16(3),
        "sink": arrays["sink"] - np.float16(1),
        "reach": arrays["reach"][1:],
    }
    for name, array in wrong.items():
        with pytest.raises(ValueError, match=name):
            ExampleSum.from_arrays({**arrays, name: array}, meta, facts)


def test_at_most_so_many_heads_evenly_spaced() -> None:
    assert shown_heads(48).tolist() == list(range(48))
    rows = shown_heads(1000)
    assert len(rows) == HEADS
    assert rows[0] == 0
    assert set(np.diff(rows).tolist()) == {3, 4}


def test_some_heads_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where heads are left out, the others have the same numbers."""
    model, documents = eager("llama"), [document(0, 100)]
    whole = excerpts(model, documents).get(ExampleSum)
    count = whole.weight.shape[1]
    monkeypatch.setattr("qkscope.sums.excerpts.HEADS", 3)
    some = excerpts(model, documents).get(ExampleSum)
    chosen = whole.select(np.arange(3) * count // 3)
    np.testing.assert_array_equal(some.key, chosen.key)
    np.testing.assert_array_equal(some.weight, chosen.weight)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("excerpts"))


def units_with(results: Path, name: str) -> set[str]:
    return {
        path.parent.relative_to(results / "units").as_posix() for path in results.glob(f"units/*/*/{name}.*")
    }


@pytest.mark.usefixtures("no_drawing")
def test_a_run_keeps_the_text_of_its_first_documents(study: Path, tmp_path: Path) -> None:
    run(study, tmp_path)
    names = [f"checkpoint-{i}" for i in (1, 2, 3)]
    found = load_results(tmp_path).examples
    assert found is not None
    assert list(found) == names
    # Document i is in group i: the other units are not read for it.
    assert units_with(tmp_path, "examples") == {f"{name}/{group}" for name in names for group in (0, 1)}
    texts = [path.read_text() for path in sorted((study.parent / "texts").iterdir())[:2]]
    for each in found.values():
        assert each.sums.document.tolist() == [0, 1]
        for some, text, n in zip(each.words, texts, each.sums.lengths, strict=True):
            assert len(some) == n
            assert "".join(some).removeprefix("<s>").strip() in text
    # Asked for no more, the text is gone; nothing is measured again.
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("units/*/*/moments.safetensors")}
    without = study.with_name("without.yaml")
    without.write_text(study.read_text() + "examples: 0\n")
    run(without, tmp_path)
    assert load_results(tmp_path).examples is None
    assert not (tmp_path / NAME).exists()
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_the_number_of_excerpts_has_limits(study: Path) -> None:
    for number in ("9", "-1", "true", "two"):
        wrong = study.with_name("wrong.yaml")
        wrong.write_text(study.read_text() + f"examples: {number}\n")
        assert any("examples" in mistake for mistake in validate(wrong))


def test_tokens_are_spelled_as_they_stand_in_the_text() -> None:
    """A tokenizer that drops the first space, joins words again, and cuts characters into bytes."""

    class Bytes:
        def decode(self, ids: list[int], **settings: Any) -> str:
            return bytes(ids).decode("utf-8", "replace").removeprefix(" ")

    assert spell(Bytes(), list(b" a b")) == ("", "a", " ", "b")
    assert spell(Bytes(), list("xé".encode())) == ("x", "\ufffd", "é")
    assert spell(None, [3, 500]) == ("#3", "#500")
    assert all(len(word) <= 64 for word in spell(Bytes(), [120] * 100))


def test_shown_are_heads_with_roles_first_then_those_of_position() -> None:
    """One head for each role and population, the strongest, unless a head already shown has the role."""
    names = ["step-1", "step-2"]
    results = make_results(Path("none"), names, Shape(layers=4, heads=4, group=2), loo=True)
    data = results.own()
    every = list(zip(data["layer"].to_numpy().tolist(), data["number"].to_numpy().tolist(), strict=True))
    zero = xr.zeros_like(data["r_q"])
    scores = {role.variable: zero.copy() for role in ROLES}
    for head, name, score in (
        (2, "role_sink", 0.8),
        (5, "role_sink", 0.6),
        (2, "role_local", 0.9),
        (14, "role_sink", 0.5),
    ):
        scores[name][:, :, head] = score
    share = zero + np.linspace(0, 0.5, len(every))
    chosen = shown(data.assign(scores).assign(share_positional=share), names, every)
    # Head 5 is a weaker sink than head 2, and head 2 is local, too; layer 3 does not rotate, so head 14 is shown.
    expected = [2, 14, 15, 13, 12, 11, 10, 9]
    assert chosen == sorted(every[i] for i in expected)
    assert shown(data.assign(scores), names, every[3:6]) == sorted(every[3:6])
