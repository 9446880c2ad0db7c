"""One head's saved queries and keys in the plane of their first two axes."""

from __future__ import annotations

import numpy as np
import pytest
from reference import combined_pca_reference
from tiny import tiny_model

from qkscope import scan
from qkscope.errors import VectorsError
from qkscope.figures import scatter
from qkscope.figures.picture import pdf, png
from qkscope.figures.plane import MOST
from qkscope.vectors import write_vectors

ROWS, DIM = 2400, 6


@pytest.fixture
def stored(tmp_path, rng):
    """Queries and keys of one head, keys apart from queries and drifting the other way."""
    t = np.arange(ROWS) % 64
    found = {}
    for kind, drift, centre in (("q", 4.0, 0.0), ("k", -3.0, 5.0)):
        x = (
            rng.standard_normal((ROWS, DIM))
            + drift * np.outer(t / 64, np.eye(DIM)[0])
            + centre * np.eye(DIM)[1]
        )
        found[kind] = x.astype(np.float32)
        about = {"example_id": np.arange(ROWS) // 64, "position": t, "window": 64}
        write_vectors(tmp_path, "m", 2, 1, kind, vector=found[kind], **about)
    return tmp_path, found["q"], found["k"], t


def test_points_are_projections_on_the_axes_of_all_vectors(stored):
    root, q, k, t = stored
    drawing = scatter(root, "m", 2, 1, gqa_ratio=1)
    data, axes = drawing.data, drawing.figure.axes[0]
    assert data.groupby("kind").size().to_dict() == {"q": MOST, "k": MOST}
    explained, components = combined_pca_reference(q, t, k, t, 2)[2:]
    some = np.unique(np.linspace(0, ROWS - 1, MOST).astype(int))
    pooled = np.concatenate([q, k]).astype(np.float64)
    for kind, x in (("q", q), ("k", k)):
        part = data[data["kind"] == kind]
        assert part["position"].tolist() == t[some].tolist()
        expected = (x[some] - pooled.mean(axis=0)) @ components.T
        found = part[["pc0", "pc1"]].to_numpy()
        signs = np.sign((found * expected).sum(axis=0))
        np.testing.assert_allclose(found, expected * signs, rtol=0, atol=1e-6)
    assert axes.get_xlabel() == f"PC0 ({explained[0]:.0%} of the variance)"
    assert axes.get_ylabel() == f"PC1 ({explained[1]:.0%} of the variance)"
    assert len(axes.collections[0].get_offsets()) == 2 * MOST


def test_kinds_are_told_by_colour_and_later_points_are_darker(stored):
    drawing = scatter(stored[0], "m", 2, 1, gqa_ratio=1)
    points = drawing.figure.axes[0].collections[0]
    place = {tuple(p): c for p, c in zip(points.get_offsets().tolist(), points.get_facecolors(), strict=True)}
    for kind, channel in (("q", 2), ("k", 0)):
        part = drawing.data[drawing.data["kind"] == kind].sort_values("position", kind="stable")
        shades = np.array([place[p] for p in part[["pc0", "pc1"]].itertuples(index=False, name=None)])
        assert (shades[:, :3].argmax(axis=1) == channel).all()
        assert (np.diff(shades[:, :3].sum(axis=1)) <= 1e-12).all()


def test_vectors_of_a_scan_are_drawn_for_a_page_and_a_column(tmp_path):
    texts = [[3 + (7 * i + j) % 60 for j in range(64)] for i in range(4)]
    scan(tiny_model(), texts=texts, max_length=64, save_vectors=0.5, out=tmp_path, measures=[])
    (model,) = (tmp_path / "vectors").iterdir()
    for width in (None, 3.3):
        drawing = scatter(tmp_path / "vectors", model.name, 1, 3, width)
        assert png(drawing.figure).startswith(b"\x89PNG")
        assert pdf(drawing.figure) == pdf(scatter(tmp_path / "vectors", model.name, 1, 3, width).figure)


def test_what_is_not_there_is_said(stored):
    root, q, _, t = stored
    with pytest.raises(VectorsError, match=r"no vectors of 'n'; there are those of m"):
        scatter(root, "n", 2, 1)
    with pytest.raises(VectorsError, match=r"no queries of head 0 of layer 2; there are heads \[1\]"):
        scatter(root, "m", 2, 0)
    with pytest.raises(VectorsError, match=r"of layer 9; there are layers \[2\]"):
        scatter(root, "m", 9, 0)
    about = {"example_id": t, "position": t, "window": 64}
    write_vectors(root, "m", 2, 1, "k", vector=np.where(t[:, None] == 3, np.nan, q), **about)
    with pytest.raises(VectorsError, match=r"l02h01k.*vectors are NaN"):
        scatter(root, "m", 2, 1, gqa_ratio=1)
    write_vectors(root, "m", 2, 1, "k", vector=q[:, :4], **about)
    with pytest.raises(VectorsError, match=r"vectors of 6 numbers and of 4"):
        scatter(root, "m", 2, 1, gqa_ratio=1)
