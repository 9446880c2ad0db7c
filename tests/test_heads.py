from __future__ import annotations

import json
import random
from importlib.resources import files

import numpy as np
import pytest

from qkscope.errors import StudyError
from qkscope.sums.head_index import HeadIndex, depth, depth_bin, sample_heads

PUBLISHED = json.loads(files("qkscope").joinpath("published/smollm3.json").read_text())


def test_the_sample_is_the_published_rule():
    every = [(layer, head) for layer in range(36) for head in range(16)]
    assert sample_heads(range(36), 16, 300, seed=0) == random.Random(0).sample(every, 300)
    assert sample_heads([1, 3], 2, None) == [(1, 0), (1, 1), (3, 0), (3, 1)]


@pytest.mark.parametrize(("name", "tolerance"), [("r_q", 0.004), ("r_k", 0.012)])
def test_sample_and_depth_bins_reproduce_the_published_means(name, tolerance):
    """Weighting each heat-map cell by the heads that our sample puts there gives the mean of all heads."""
    layers = np.array([layer for layer, _ in sample_heads(range(36), 16, 300, seed=0)])
    counts = np.bincount(depth_bin(depth(layers, 36)), minlength=10)
    assert counts.sum() == 300
    cells = np.array(PUBLISHED[f"depth_heatmap_{name}"])
    np.testing.assert_allclose(cells @ counts / 300, PUBLISHED[f"mean_{name}"], rtol=0, atol=tolerance)


def test_heads_from_other_depths_would_not_reproduce_them():
    """The test above can fail: the first 300 heads, in order, miss the published means."""
    layers = np.array([layer for layer, _ in sample_heads(range(36), 16, None)[:300]])
    counts = np.bincount(depth_bin(depth(layers, 36)), minlength=10)
    means = np.array(PUBLISHED["depth_heatmap_r_k"]) @ counts / 300
    assert np.abs(means - PUBLISHED["mean_r_k"]).max() > 0.012


@pytest.mark.parametrize("count", [0, 33, -1])
def test_a_sample_that_cannot_be_drawn(count):
    with pytest.raises(StudyError, match=f"sample of {count} heads.*1 to 32"):
        sample_heads(range(8), 4, count)


def test_query_heads_and_their_keys():
    heads = HeadIndex.of([(2, 5), (0, 1), (0, 0), (2, 3)], 4, {0: True, 2: False})
    assert list(zip(heads.layer, heads.head, heads.kv_head, strict=True)) == [
        (0, 0, 0),
        (0, 1, 0),
        (2, 3, 0),
        (2, 5, 1),
    ]
    assert heads.keys.tolist() == [[0, 0], [2, 0], [2, 1]]
    assert heads.kv_row.tolist() == [0, 0, 1, 2]
    assert heads.rope.tolist() == [1, 1, 0, 0]
    assert HeadIndex.of([(3, 0)], 1).rope.tolist() == [-1]
    again = HeadIndex.from_meta(json.loads(json.dumps(heads.to_meta())))
    assert again.to_meta() == heads.to_meta()
    assert np.array_equal(again.kv_row, heads.kv_row)


@pytest.mark.parametrize(
    ("layer", "layers", "expected"),
    [(0, 36, 0), (35, 36, 9), (21, 36, 6), (14, 36, 4), (0, 1, 0), (7, 71, 1)],
)
def test_depth_bins(layer, layers, expected):
    assert depth_bin(depth(layer, layers)) == expected == min(9, (10 * layer) // max(layers - 1, 1))
