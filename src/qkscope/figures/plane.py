"""One head's queries and keys, from vectors on disk, in the plane of their first two axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from qkscope.errors import VectorsError
from qkscope.figures.picture import Caption, Drawing
from qkscope.figures.sheet import Key, Paper, dot, draw_panels
from qkscope.figures.style import FAINT, R_K, R_Q, pale
from qkscope.measures.pca import Axes, measure_batch
from qkscope.sums.moments import Accumulator, Moments
from qkscope.vectors import ModelFolder, Rows, find_models, infer_ratio, read_rows, require_keys
from qkscope.words import bare, percent

NAMES = {"q": "query", "k": "key"}
# From the first position to the last.
SHADES = {
    kind: LinearSegmentedColormap.from_list(kind, [pale(colour, 0.75), colour, dark])
    for kind, colour, dark in (("q", R_Q, "#0b2c45"), ("k", R_K, "#4d0c0d"))
}
MOST = 2000  # points of a kind
CAPTION = Caption(
    title="Queries and keys in the plane of their first two axes",
    shows="Each point is a query (blue) or a key (red) along PC0 and PC1 of the head; later positions are darker.",
    made="PCA of all queries and keys of the head together.",
    drawn="scatter plot of at most 2,000 points of either kind, evenly chosen.",
)


def scatter(
    vectors_root: Path | str,
    model: str,
    layer: int,
    head: int,
    width: float | None = None,
    gqa_ratio: int | None = None,
) -> Drawing:
    """A head's queries (blue) and keys (red) along PC0 and PC1, the darker the later they stand.

    `vectors_root` is a folder as `scan` with `save_vectors` writes it, and `analyze` reads it. Axes are those of all
    vectors there, about the mean of queries and keys together; of either kind at most 2,000 are drawn, evenly chosen.
    """
    root = Path(vectors_root)
    models = {found.name: found for found in find_models(root)}
    if model not in models:
        raise VectorsError(f"{root}: no vectors of {model!r}; there are those of {', '.join(models)}")
    folder = models[model]
    files = _files(folder, layer, head, gqa_ratio)
    rows = {kind: read_rows(path) for kind, path in files.items()}
    axes, centre = _axes(files, rows)
    data = _points(rows, axes, centre)
    data.insert(0, "model", folder.name)
    return Drawing(_draw(data, axes, f"layer {layer} head {head}", Paper(width)), data, CAPTION)


def _files(folder: ModelFolder, layer: int, head: int, gqa_ratio: int | None) -> dict[str, Path]:
    if (layer, head) not in folder.queries:
        there = sorted(h for of, h in folder.queries if of == layer)
        layers = sorted({of for of, _ in folder.queries})
        held = f"heads {there} of it" if there else f"layers {layers}"
        raise VectorsError(f"{folder.path}: no queries of head {head} of layer {layer}; there are {held}")
    ratio = gqa_ratio or infer_ratio(folder)
    require_keys(folder, ratio)
    return {"q": folder.queries[layer, head], "k": folder.keys[layer, head // ratio]}


def _axes(files: dict[str, Path], rows: dict[str, Rows]) -> tuple[Axes, NDArray[np.float64]]:
    """The first two axes of queries and keys pooled, turned as everywhere, and the mean (d,) they go through."""
    shapes = [of.vector.shape[1] for of in rows.values()]
    if shapes[0] != shapes[1] or shapes[0] < 2:
        found = f"vectors of {shapes[0]} numbers and of {shapes[1]} in {files['k']}"
        raise VectorsError(f"{files['q']}: {found}; a plane needs the same number of both, at least two")
    q, k = _moments(rows["q"]), _moments(rows["k"])
    axes = measure_batch([(q, k)], 2)
    for path, bad in ((files["q"], axes.bad_q[0]), (files["k"], axes.bad_k[0])):
        if bad:
            raise VectorsError(
                f"{path}: {bad} vectors are NaN or infinite; write them again or leave them out"
            )
    return axes, q.merge(k).mean_x[0]


def _moments(rows: Rows) -> Moments:
    sums = Accumulator()
    sums.update(rows.vector[None], rows.position)
    return sums.moments()


def _points(rows: dict[str, Rows], axes: Axes, centre: NDArray[np.float64]) -> pd.DataFrame:
    """kind, example, position, pc0, pc1: a row a point."""
    frames = []
    for kind, of in rows.items():
        count = len(of.position)
        some = np.unique(np.linspace(0, count - 1, min(count, MOST)).astype(int))
        place = (of.vector[some] - centre) @ axes.v[0]
        columns = {"kind": kind, "example": of.example[some], "position": of.position[some]}
        frames.append(pd.DataFrame(columns | {"pc0": place[:, 0], "pc1": place[:, 1]}))
    return pd.concat(frames, ignore_index=True)


def _draw(data: pd.DataFrame, found: Axes, name: str, paper: Paper) -> Figure:
    last = max(int(data["position"].max()), 1)
    # In an order that hides neither kind behind the other.
    mixed = data.iloc[np.random.default_rng(0).permutation(len(data))]
    colours = [SHADES[kind](t / last) for kind, t in zip(mixed["kind"], mixed["position"], strict=True)]

    def points(axes: Panel) -> None:
        look: dict[str, Any] = {"c": colours, "linewidths": 0, "alpha": 0.8, "zorder": 3}
        axes.scatter(mixed["pc0"], mixed["pc1"], 9 * paper.factor**2, **look)
        axes.margins(0.04)
        axes.grid(True, color=FAINT, linewidth=0.6)

    subtitle = f"{data['model'].iloc[0]}: {found.n_q[0]:,} queries, {found.n_k[0]:,} keys"
    r_q, r_k = (bare(float(r[0, 0]), signed=True) for r in (found.r_q, found.r_k))
    shares = [f"PC{i} ({percent(float(found.explained_variance[0, i]))} of the variance)" for i in (0, 1)]
    drawn = [(f"{name}: r_q = {r_q}, r_k = {r_k}", points)]
    return draw_panels(paper, CAPTION.title, subtitle, _keys(data), drawn, *shares, wide=5.4).figure


def _keys(data: pd.DataFrame) -> list[Key]:
    last = int(data["position"].max())
    return [
        dot(f"{name} at token {round(share * last):,}", SHADES[kind](share))
        for kind, name in NAMES.items()
        for share in (0.0, 0.5, 1.0)
    ]
