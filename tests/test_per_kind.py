"""Queries alone and keys alone, against their definitions on vectors."""

from __future__ import annotations

import numpy as np
import pytest
from reference import jackknife_reference, per_kind_reference
from synthetic import make_head

from qkscope.measures.pca import whole_and_without
from qkscope.measures.per_kind import NAMES, per_kind
from qkscope.measures.registry import variables
from qkscope.measures.samples import jackknife
from qkscope.sums.moments import Accumulator


def per_kind_samples(groups):
    """NAMES over all document groups, then without each: (1 + G, len(NAMES), H)."""
    kinds = [whole_and_without([group[i] for group in groups]) for i in (0, 1)]
    return np.stack([per_kind(q, k) for q, k in zip(*kinds, strict=True)])


def moments(x, t):
    sums = Accumulator()
    sums.update(x[None], np.asarray(t, dtype=np.float64))
    return sums.moments()


@pytest.mark.parametrize(("dim", "mean"), [(2, 0.5), (16, 3.0), (48, 100.0)])
def test_every_number_equals_its_definition(rng, dim, mean):
    q, t_q = make_head(rng, 2000, dim, mean=mean)
    k, t_k = make_head(rng, 1500, dim, follow=-0.6, mean=-mean / 2)
    found = per_kind(moments(q, t_q), moments(k, t_k))[:, 0]
    expected = per_kind_reference(q, t_q, k, t_k)
    for name, value in zip(NAMES, found, strict=True):
        assert value == pytest.approx(expected[name], rel=1e-8, abs=1e-9), name


def test_errors_are_the_jackknife_over_groups(rng):
    parts = [(*make_head(rng, 300, 5), *make_head(rng, 300, 5, mean=2.0)) for _ in range(4)]
    found = per_kind_samples([(moments(q, t), moments(k, s)) for q, t, k, s in parts])
    left = []
    for g in range(4):
        rest = [np.concatenate([p[i] for j, p in enumerate(parts) if j != g]) for i in range(4)]
        left.append(per_kind_reference(*rest)["linear_q"])
    assert found.shape == (5, len(NAMES), 1)
    assert jackknife(found[1:])[NAMES.index("linear_q"), 0] == pytest.approx(
        jackknife_reference(left), rel=1e-7
    )


def test_what_does_not_vary_or_is_broken_has_no_numbers(rng):
    q, t = make_head(rng, 100, 4)
    still = per_kind(moments(q, np.full(100, 7.0)), moments(q, t))[:, 0]
    assert np.isnan(still[NAMES.index("linear_q")])
    assert np.isfinite(still[NAMES.index("linear_k")])
    bad = q.copy()
    bad[3, 1] = np.nan
    assert np.isnan(per_kind(moments(bad, t), moments(q, t))).all()


def test_no_measure_is_named_like_the_size_of_another():
    """`abs_r_k` is read as |r_k| along PC0 wherever a mean is asked for."""
    assert not [
        name for name in variables() if name.removeprefix("abs_") in variables() and name.startswith("abs_")
    ]
