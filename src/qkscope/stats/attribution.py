"""What changed a number between neighbouring checkpoints A and B: training, RoPE settings or the window.

At the shorter of the two windows, weights and settings are exchanged one at a time, through two counterfactual cells.
The real order is settings first, then training:

    rotation_first = (A's weights, B's settings) - A        weights_first = B - (A's weights, B's settings)

`rotation` and `weights` are the means over both orders (Shapley's parts). Then the window: B over its own window
minus B over A's. No checkpoint is run past the length it was trained with. Effects are means over the heads of one
population, with jackknife errors over documents, which all cells share.

    interaction           weights_first - weights_other_order: training's effect under B's settings minus under A's
    weights_and_rotation  B - A over the shorter window: what is left where the two cannot be separated
    *_same_axis           the part of an effect of the real order from heads whose first axis stayed

`causes` makes the table; `steps` tests it: which effects are more than noise, and which causes interact (`interacts`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.checkpoints.rope import same_rotation
from qkscope.measures.pca import FEWEST_GROUPS
from qkscope.results.aggregate import ROPE, finite, jackknife, over_heads, values
from qkscope.results.dataset import CellInfo
from qkscope.results.tables import CAUSES_COLUMNS, EFFECTS, ROTATION, WEIGHTS, WINDOW
from qkscope.results.taxonomy import CLASSES, Thresholds, classify
from qkscope.stats.levels import CONTRAST_LEVEL, ONE_HEAD, ROUNDING, two_sided_p
from qkscope.stats.series import INVARIANT, Change, Changed, judge, what_changed
from qkscope.stats.transitions import hidden_variance

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

Array = NDArray[np.float64]
SameAxis = Callable[[CellInfo, CellInfo], Mapping[tuple[int, int], bool]]
"""By (layer, head): whether PC0 of the second cell continues that of the first; unknown heads are missing."""

MEAN_R_Q, MEAN_R_K, MEAN_ABS_R_K = "mean r_q", "mean r_k", "mean |r_k|"
# Means whose changes are split, by their name in causes.csv; whichever were measured.
MEANS = {MEAN_R_Q: "r_q", MEAN_R_K: "r_k", MEAN_ABS_R_K: "abs_r_k"} | {
    f"mean {name}": name
    for name in (
        *("eta_q", "eta_k", "R_q", "R_k"),
        *("share_positional", "share_position", "share_key", "share_match", "share_query_position"),
        *("r_q_balanced", "r_k_balanced", "abs_r_k_balanced"),
        *("slope_q", "slope_k", "bias_logits"),
        *("attn_first4", "attn_prev", "sink_score", "role_local", "entropy_normalised", "induction_score"),
    )
}
LOSS = "loss"
NUMBERS = {measure: number for number, measure in MEANS.items()}


def share_of(kind: str) -> str:
    """The name of a class's share."""
    return f"share of {kind} heads"


def causes(data: xr.Dataset, order: Sequence[str], limits: Thresholds, same_axis: SameAxis) -> pd.DataFrame:
    """causes.csv: a row per step between neighbours in `order`, population and number, with CAUSES_COLUMNS."""
    import pandas as pd

    numbers = _numbers(data, limits)
    hidden = {share_of(kind): found for kind, found in hidden_variance(data, limits).items()}
    fields = (data[name].to_numpy().tolist() for name in CellInfo.__dataclass_fields__)
    cells = [CellInfo(*row) for row in zip(*fields, strict=True)]
    rows = []
    for before, after in pairwise(order):
        found = _path(cells, before, after)
        if found is not None:
            rows += _step(found, cells, numbers, hidden, data["rope"], same_axis)
            rows += _loss_step(found, cells, data)
    return pd.DataFrame(rows, columns=list(CAUSES_COLUMNS))


def _numbers(data: xr.Dataset, limits: Thresholds) -> xr.DataArray:
    """Values of heads whose mean each number is; a class's are 0 and 1. (number, cell, sample, head)"""
    import xarray as xr

    found = {
        name: values(data, measure) for name, measure in MEANS.items() if measure.removeprefix("abs_") in data
    }
    r_q, r_k = found[MEAN_R_Q], found[MEAN_R_K]
    kinds, known = classify(r_q.to_numpy(), r_k.to_numpy(), limits), finite(r_q + r_k)
    found |= {share_of(kind): r_q.copy(data=kinds == kind).where(known) for kind in CLASSES}
    plain = [each.reset_coords(drop=True).assign_coords(groups=data["groups"]) for each in found.values()]
    return xr.concat(plain, "number", coords="minimal", compat="override", join="exact").assign_coords(
        number=list(found)
    )


# --- one step ---------------------------------------------------------------------------------------------------------

# Roles of cells: a, b at the common window; a0, b0 at their own; ab has a's weights with b's settings, ba the reverse.
_Roles = Mapping[str, int]


def _path(cells: Sequence[CellInfo], before: str, after: str) -> _Roles | None:
    """The cells between two checkpoints, by role; None if one of the two was not measured."""
    own = {cell.checkpoint: i for i, cell in enumerate(cells) if cell.own}
    if before not in own or after not in own:
        return None
    a0, b0 = own[before], own[after]
    window = min(cells[a0].window, cells[b0].window)

    def find(weights: str, settings: str) -> int | None:
        here = [
            i
            for i, cell in enumerate(cells)
            if cell.window == window and cell.weights_of == weights and same_rotation(cell.settings, settings)
        ]
        return next((i for i in here if cells[i].checkpoint == weights), here[0] if here else None)

    s_a, s_b = cells[a0].settings, cells[b0].settings
    wanted = {"a": find(before, s_a), "b": find(after, s_b), "ab": find(before, s_b), "ba": find(after, s_a)}
    found = {role: i for role, i in wanted.items() if i is not None}
    return found | {"a0": a0, "b0": b0} if {"a", "b"} <= found.keys() else None


def _effects(roles: _Roles, exchanged: bool) -> dict[str, dict[str, float]]:
    """Each effect as weights of the cells; one that cannot be separated is missing."""
    trained = {"b": 1.0, "a": -1.0}
    found = {
        "total": {"b0": 1.0, "a0": -1.0},
        "window": _plus({"b0": 1.0, "b": -1.0}, {"a": 1.0, "a0": -1.0}),
        "weights_and_rotation": trained,
    }
    orders = ["first", "other_order"]
    if not exchanged:
        for order in orders:
            found |= {f"weights_{order}": trained, f"rotation_{order}": {}}
        found["interaction"] = {}
    else:
        orders = [order for order, cell in zip(orders, ("ab", "ba"), strict=True) if cell in roles]
        if "ab" in roles:
            found |= {"rotation_first": {"ab": 1.0, "a": -1.0}, "weights_first": {"b": 1.0, "ab": -1.0}}
        if "ba" in roles:
            found["weights_other_order"] = {"ba": 1.0, "a": -1.0}
            found["rotation_other_order"] = {"b": 1.0, "ba": -1.0}
        if len(orders) == 2:
            found["interaction"] = {"b": 1.0, "ab": -1.0, "ba": -1.0, "a": 1.0}
    for factor in ("weights", "rotation") if orders else ():
        parts = [found[f"{factor}_{order}"] for order in orders]
        found[factor] = {cell: weight / len(orders) for cell, weight in _plus(*parts).items()}
    return found


def _plus(*parts: Mapping[str, float]) -> dict[str, float]:
    return {cell: sum(part.get(cell, 0.0) for part in parts) for cell in dict.fromkeys(chain(*parts))}


def _step(
    roles: _Roles,
    cells: Sequence[CellInfo],
    numbers: xr.DataArray,
    hidden: Mapping[str, Array],
    rope: xr.DataArray,
    same_axis: SameAxis | None,
) -> list[dict[str, Any]]:
    infos = {role: cells[i] for role, i in roles.items()}
    exchanged = not same_rotation(infos["a0"].settings, infos["b0"].settings)
    effects = _effects(roles, exchanged)
    used = sorted({roles[cell] for part in effects.values() for cell in part})
    known = finite(numbers.isel(sample=0, cell=used)).all("cell")  # (number, head)
    rope = rope.isel(cell=roles["b"], drop=True)
    # In the real order: which heads kept their first axis when one factor alone changed.
    edges = {"rotation": ("a", "ab"), "weights": ("ab" if exchanged else "a", "b")}
    stayed = {
        factor: _by_head(same_axis(*(infos[end] for end in ends)), rope)
        for factor, ends in edges.items()
        if same_axis and set(ends) <= roles.keys() and (exchanged or factor == "weights")
    }
    populations = [name for name, flag in ROPE.items() if (rope == flag).any()]
    a, ends = infos["a"], {"from_model": infos["a0"].checkpoint, "to_model": infos["b0"].checkpoint}
    common = {"window_tokens": a.window, "same_text": int(a.texts == infos["b"].texts), "groups": a.groups}
    rows = []
    for population in populations if len(populations) > 1 else ["all"]:
        here = known if population == "all" else known & (rope == ROPE[population])
        whole = {name: (part, None) for name, part in effects.items()}
        split = {f"{factor}_same_axis": (effects[f"{factor}_first"], kept) for factor, kept in stayed.items()}
        found = {
            name: _effect(part, roles, numbers, here, bool(common["same_text"]), kept)
            for name, (part, kept) in (whole | split).items()
        }
        counts = here.sum("head").to_numpy()
        for n, number in enumerate(numbers["number"].to_numpy().tolist()):
            if not counts[n]:
                continue
            row: dict[str, Any] = ends | {"number": number, "population": population, "heads": int(counts[n])}
            for name in EFFECTS:
                value, se = (float(x[n]) for x in found[name]) if name in found else (math.nan, math.nan)
                if number in hidden and name in effects:
                    se = math.hypot(se, _unseen(effects[name], roles, hidden[number], here[n].to_numpy()))
                row |= {name: value, f"{name}_se": se}
            rows.append(row | common)
    return rows


def _loss_step(roles: _Roles, cells: Sequence[CellInfo], data: xr.Dataset) -> list[dict[str, Any]]:
    """The row of the loss, one number of the whole model: the mean over a single entry, with no heads to count."""
    if LOSS not in data:
        return []
    plain = data[LOSS].reset_coords(drop=True).assign_coords(groups=data["groups"])
    whole = plain.expand_dims(number=[LOSS]).expand_dims(head=1, axis=-1)
    flags = whole.isel(number=0, sample=0, drop=True) * np.nan
    return [{**row, "heads": 0} for row in _step(roles, cells, whole, {}, flags, None)]


def _by_head(stayed: Mapping[tuple[int, int], bool], like: xr.DataArray) -> xr.DataArray:
    """1, 0 or NaN on the dimension `head` of `like`."""
    heads = zip(like["layer"].to_numpy().tolist(), like["number"].to_numpy().tolist(), strict=True)
    return like.copy(data=[float(stayed[head]) if head in stayed else math.nan for head in heads])


def _effect(
    part: Mapping[str, float],
    roles: _Roles,
    numbers: xr.DataArray,
    here: xr.DataArray,
    same_text: bool,
    stayed: xr.DataArray | None = None,
) -> tuple[Array, Array]:
    """A weighted sum of cells, as means over heads with errors: (numbers,) each. `stayed`: only what such heads add."""
    count = numbers.sizes["number"]
    if not part:
        return np.zeros(count), np.zeros(count)
    # Without common documents nothing cancels between the two checkpoints: the errors of their cells add.
    later = set() if same_text else {"b", "b0", "ba"}
    sets = [{c: w for c, w in part.items() if (c in later) == side} for side in (False, True)]
    value, variance = np.zeros(count), np.zeros(count)
    for some in filter(None, sets):
        terms = [weight * numbers.isel(cell=roles[cell], drop=True) for cell, weight in some.items()]
        groups = {int(numbers["groups"][roles[cell]]) for cell in some}
        summed = sum(terms[1:], terms[0]).assign_coords(groups=groups.pop() if len(groups) == 1 else 0)
        if stayed is not None:
            summed = summed.where(stayed != 0, 0.0).where(stayed.notnull())
        mean = over_heads(summed, here)
        value, variance = value + mean.isel(sample=0).to_numpy(), variance + jackknife(mean).to_numpy() ** 2
    return value, np.sqrt(variance)


def _unseen(part: Mapping[str, float], roles: _Roles, hidden: Array, here: NDArray[np.bool_]) -> float:
    """The error of a share that leaving documents out does not show: at least that of half a head."""
    heads = max(int(here.sum()), 1)
    variances = {cell: max(ONE_HEAD, float(hidden[roles[cell], here].sum())) / heads**2 for cell in part}
    return math.sqrt(sum(weight**2 * variances[cell] for cell, weight in part.items()))


# --- the steps, tested ------------------------------------------------------------------------------------------------

UNDIVIDED = "weights_and_rotation"  # training and settings, where they are not separable
Row = Mapping[str, Any]
Effects = Mapping[tuple[str, str, str], Change]


@dataclass(frozen=True)
class Step:
    """What changed between two neighbouring checkpoints.

    columns   the column of causes.csv of each factor that changed, in the order in which the factors act
    rows      rows of causes.csv by measure and population
    effects   effects with verdicts, by measure, population and factor
    """

    before: str
    after: str
    columns: Mapping[str, str]
    rows: Mapping[tuple[str, str], Row]
    effects: Effects

    @property
    def window(self) -> int:
        """Over how many tokens weights and settings were exchanged."""
        return int(next(iter(self.rows.values()))["window_tokens"])

    @property
    def same_text(self) -> bool:
        return bool(next(iter(self.rows.values()))["same_text"])

    def clear(self, measure: str, population: str) -> list[str]:
        """The factors with a clear effect on a mean, in the order in which they act."""
        found = ((factor, self.effects.get((measure, population, factor))) for factor in self.columns)
        return [factor for factor, effect in found if effect is not None and effect.clear]

    def training_changed(self, population: str) -> Changed:
        """Whether training changed attention or only coordinates."""
        column = self.columns.get(WEIGHTS) or self.columns.get(UNDIVIDED, "")
        rows = [self.rows[m, population] for m in INVARIANT if (m, population) in self.rows]
        return what_changed([_change(row, column) for row in rows if column])


def steps(table: pd.DataFrame, measures: Sequence[str], populations: Sequence[str]) -> list[Step]:
    """The steps of causes.csv with the effects on these means, tested together."""
    wanted = {NUMBERS[m]: m for m in dict.fromkeys((*measures, *INVARIANT))}
    found: dict[tuple[str, str], dict[tuple[str, str], Row]] = {}
    for row in table[table["number"].isin(list(wanted))].to_dict("records"):
        if row["population"] in populations and math.isfinite(row["total"]):
            rows = found.setdefault((row["from_model"], row["to_model"]), {})
            rows[wanted[row["number"]], row["population"]] = {str(name): x for name, x in row.items()}
    columns = {ends: _columns(next(iter(rows.values()))) for ends, rows in found.items()}
    tested = {
        (ends, key, factor): _change(row, column)
        for ends, rows in found.items()
        for key, row in rows.items()
        if key[0] in measures
        for factor, column in columns[ends].items()
    }
    effects = dict(zip(tested, judge(list(tested.values())), strict=True))
    found_steps = []
    for ends, rows in found.items():
        own = {(*key, factor): effect for (at, key, factor), effect in effects.items() if at == ends}
        found_steps.append(Step(*ends, columns[ends], rows, own))
    return found_steps


def _columns(row: Row) -> dict[str, str]:
    found: dict[str, str] = {}
    if math.isnan(row["rotation"]):
        found[UNDIVIDED] = UNDIVIDED
    elif _nothing(row, "rotation"):
        found[WEIGHTS] = "weights_first"
    elif math.isfinite(row["rotation_first"]):
        found |= {ROTATION: "rotation_first", WEIGHTS: "weights_first"}
    else:
        found |= {WEIGHTS: "weights_other_order", ROTATION: "rotation_other_order"}
    return found if _nothing(row, "window") else found | {WINDOW: "window"}


def _nothing(row: Row, name: str) -> bool:
    """Whether a factor did not change at all."""
    return bool(row[name] == 0 and not row[f"{name}_se"] > 0)


def _change(row: Row, column: str) -> Change:
    """An effect as a change from the first checkpoint to the second."""
    return Change(row["number"], 0, 1, row[column], row[f"{column}_se"], int(row["groups"]) - 1)


def interacts(row: Row) -> bool:
    """Whether training's effects before and after the change of RoPE settings differ by more than noise.

    The settings' effects before and after training then differ by as much.
    """
    size, se, df = abs(row["interaction"]), row["interaction_se"], int(row["groups"]) - 1
    return size > ROUNDING and df >= FEWEST_GROUPS - 1 and two_sided_p(size, se, df) < CONTRAST_LEVEL
