"""Are the checkpoints of a study what they claim to be? Checks of the study alone, and of what was measured."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.checkpoints.doctor import Finding, contradicting_configs, identical_weights, names_of
from qkscope.checkpoints.files import live_record
from qkscope.checkpoints.revisions import PLAIN, parse_revision
from qkscope.measures.samples import jackknife
from qkscope.run.plan import PlannedCheckpoint, without_counterfactual
from qkscope.run.units import read_unit
from qkscope.study import Checkpoint, Study
from qkscope.sums import FactSum, MomentSum, PathSum
from qkscope.sums.moments import Moments
from qkscope.sums.rotation import Rotation
from qkscope.sums.unit import Unit, window
from qkscope.words import count, number, some

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

# Vectors before rotation that vary by less than this part of their squares do not vary: sums round to 1e-7.
CONSTANT = 1e-6
# Two heads with moments this close are one: equal weights give sums that differ in the last bits.
EQUAL = 1e-5
# Measured numbers of two checkpoints this close come from the same weights.
SAME_NUMBERS = 1e-7
# Relative difference of a wavelength that is no rounding (bfloat16 rounds a table to 0.4%).
OTHER_WAVELENGTH = 0.02
# Nats per token: random weights alone are a little above guessing.
LOSS_ABOVE = 0.1
# A tokenizer that names fewer of a large vocabulary's embeddings than this is probably another model's.
FEWEST_NAMED, LARGE_VOCABULARY = 0.9, 1000


def inspect_study(
    study: Study, checkpoints: Sequence[Checkpoint], configured: Sequence[Checkpoint] | None = None
) -> list[Finding]:
    """What is suspicious before anything is measured: files, order and configurations of these checkpoints.

    `configured`: those whose configurations are at hand (default: all).
    """
    # Checkpoints that were measured while they trained may have no weights.
    saved = {each.name: each.source for each in checkpoints if live_record(each.source) is None}
    described = {each.name: each.source for each in (checkpoints if configured is None else configured)}
    order = out_of_order(checkpoints) if study.kind == "training" else []
    return [*identical_weights(saved), *contradicting_configs(described), *order]


def inspect_results(measured: Sequence[PlannedCheckpoint], results: Path, data: xr.Dataset) -> list[Finding]:
    """What is suspicious about measured checkpoints: their tokens, sums and numbers."""
    planned = without_counterfactual(measured)
    found: list[Finding] = []
    for each in planned:
        job = each.jobs[0]  # one group shows as much as all
        names = [sums.name for sums in (FactSum, MomentSum, PathSum) if sums.name in job.keys]
        unit = read_unit(job.path(results), {name: job.keys[name] for name in names})
        found += inspect_unit(each.checkpoint.name, unit)
    return [
        *different_tokens({each.checkpoint.name: each.corpus.digest for each in planned}),
        *not_finite(data),
        *found,
        *other_frequencies(planned, data),
        *same_numbers(data),
        *worse_than_untrained(planned, data),
    ]


def out_of_order(checkpoints: Sequence[Checkpoint]) -> list[Finding]:
    """Phases that go back by the names of their checkpoints, and folders whose trainer saved another step.

    Steps that go back within a phase are mistakes of the study, which is not run then.
    """
    found = []
    why = "Changes are computed from each checkpoint to the next, so training would appear to run backwards"
    for a, b in pairwise(checkpoints):
        keys = [known.phase_key for each in (a, b) if (known := parse_revision(each.name)) is not None]
        if len(keys) == 2 and PLAIN not in (keys[0][0], keys[1][0]) and keys[0] > keys[1]:
            seen = f"{b.name} comes after {a.name}, which by its name is of a later phase"
            action = "List phases in training order (`qkscope ls` prints it)"
            found.append(Finding("order", "warning", (a.name, b.name), seen, why, action))
    for each in checkpoints:
        named = parse_revision(each.source.revision or each.source.model)
        saved = _saved_step(each.source.path)
        if named is not None and saved is not None and named.step != saved:
            seen = f"{each.name}: its name says step {named.step:,}, its trainer_state.json step {saved:,}"
            action = "Find out which is right, and rename the folder or give its `step:` in the study"
            found.append(Finding("order", "warning", (each.name,), seen, why, action))
    return found


def _saved_step(folder: Path | None) -> int | None:
    """The step that a Hugging Face Trainer wrote beside the weights."""
    if folder is None or not (path := folder / "trainer_state.json").is_file():
        return None
    try:
        step = json.loads(path.read_text("utf-8"))["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # of no interest to what is measured
    return step if isinstance(step, int) else None


def other_vocabulary(checkpoint: str, tokenizer: Any, config: Any) -> list[Finding]:
    """A tokenizer with more tokens than the model has embeddings, or with far fewer."""
    size, tokens = getattr(config.get_text_config(), "vocab_size", None), len(tokenizer)
    if not size or (tokens <= size and (size < LARGE_VOCABULARY or tokens >= FEWEST_NAMED * size)):
        return []
    seen = f"{checkpoint}: its tokenizer has {tokens:,} tokens, the model {size:,} embeddings"
    why = "A tokenizer of another model turns texts into tokens that mean something else to this one"
    action = "Give the model's own tokenizer: `tokenizer:` in the study"
    return [Finding("tokenizer", "error" if tokens > size else "warning", (checkpoint,), seen, why, action)]


def different_tokens(tokens: Mapping[str, object]) -> list[Finding]:
    """Checkpoints of one training run with different tokenizers: by name, a vocabulary or a digest of the documents."""
    first = next(iter(tokens), "")
    names = [name for name, known in tokens.items() if known != tokens[first]]
    if not names:
        return []
    seen = f"the tokenizer of {names_of(names)} differs from that of {first}"
    why = "The same texts are then different tokens, so changes between these checkpoints are not training alone"
    action = "Give one tokenizer for all: `tokenizer:` in the study"
    return [Finding("tokenizer", "warning", tuple(names), seen, why, action)]


def inspect_unit(checkpoint: str, unit: Unit) -> list[Finding]:
    """Heads whose queries or keys are the same for every token, and heads that are equal to each other."""
    constant: list[str] = []
    equal: list[str] = []
    q, k = window(unit, unit.windows[-1])
    for word, moments, path, layers, numbers in (
        ("query", q, unit.path_q, unit.heads.layer, unit.heads.head),
        ("key", k, unit.path_k, *unit.heads.keys.T),
    ):
        for layer in np.unique(layers).tolist():
            rows = np.flatnonzero(layers == layer)
            part, rotation = moments.select(rows), unit.rotations.get(layer)
            total = None if path is None else path.window(unit.windows[-1]).filled
            mean = None if total is None else total.select(rows).mean
            still = _constant(part, mean, None if total is None else total.n, rotation)
            constant += [f"layer {layer} {word} head {numbers[rows[i]]}" for i in np.flatnonzero(still)]
            for group in _equal(part, still):
                which = ", ".join(str(numbers[rows[i]]) for i in group)
                equal.append(f"layer {layer} {word} heads {which}")
    found = []
    if constant:
        seen = f"{checkpoint}: {some(constant, 4)} give every token the same vector before rotation"
        why = "Such a head cannot use content, and r, classes and shares of its scores say nothing about training"
        action = "Check that its weights were saved and loaded (zeros, a frozen or unused projection)"
        found.append(Finding("constant", "warning", (checkpoint,), seen, why, action))
    if equal:
        seen = f"{checkpoint}: equal to one another: {some(equal, 4)}"
        why = (
            "They are one head counted several times; usual causes are tensor-parallel ranks initialised with the same "
            "seed and heads copied when weights were converted"
        )
        action = "Check initialisation or conversion; if it is intended, treat the copies as one head"
        found.append(Finding("equal_heads", "error", (checkpoint,), seen, why, action))
    return found


def _constant(
    moments: Moments, mean: Array | None, n: NDArray[np.int64] | None, rotation: Rotation | None
) -> NDArray[np.bool_]:
    """Whether each head's vectors before rotation are one vector: E|u|^2 is then the square of their mean. (H,)

    mean (H, B, d) and n (B,): mean vectors before rotation by bins of position; None if not measured.
    """
    squares = np.einsum("hdd->hd", moments.M) / np.maximum(moments.n, 1)[:, None]
    if mean is None or n is None:
        return np.asarray(
            (squares.sum(axis=1) <= CONSTANT * (moments.mean_x**2).sum(axis=1)) & (moments.bad == 0)
        )
    squares = squares + moments.mean_x**2
    if rotation is not None:
        squares[:, rotation.pairs.ravel()] /= rotation.scale**2
    whole = (mean * (n / n.sum())[None, :, None]).sum(axis=1)  # (H, d)
    varies = squares.sum(axis=1) - (whole**2).sum(axis=1)
    return np.asarray((varies <= CONSTANT * squares.sum(axis=1)) & (moments.bad == 0))


def _equal(moments: Moments, still: NDArray[np.bool_]) -> Iterator[list[int]]:
    """Groups of heads with equal moments; those that do not vary are left out."""

    def same(a: int, b: int) -> bool:
        pairs = [(x[a], x[b]) for x in (moments.mean_x, moments.M)]
        return all(np.linalg.norm(x - y) <= EQUAL * np.linalg.norm(x) for x, y in pairs)

    return _alike(np.flatnonzero(~still & (moments.bad == 0)).tolist(), same)


def _alike(left: list[int], same: Callable[[int, int], bool]) -> Iterator[list[int]]:
    """Groups of two or more numbers, each the same as the first of its group."""
    while left:
        first, *others = left
        group = [first, *(i for i in others if same(first, i))]
        left = [i for i in others if i not in group]
        if len(group) > 1:
            yield group


def not_finite(data: xr.Dataset) -> list[Finding]:
    """Heads that met NaN or infinite queries or keys, by checkpoint."""
    found = []
    for cell in np.flatnonzero(data["own"].to_numpy()):
        here = data.isel(cell=int(cell))
        bad = ((here["bad_q"] + here["bad_k"]) > 0).to_numpy()
        if bad.any():
            name = str(here["checkpoint"].item())
            heads = some([str(head) for head in here["head"].to_numpy()[bad]], 6)
            seen = f"{name}: {count(int(bad.sum()), 'head')} met NaN or infinite values ({heads})"
            why = "They have no numbers, and the model's outputs are NaN as well or overflow in its dtype"
            action = "Try `dtype: float32` in the study; if that does not help, the checkpoint is damaged: leave it out"
            found.append(Finding("nan", "error", (name,), seen, why, action))
    return found


def other_frequencies(planned: Sequence[PlannedCheckpoint], data: xr.Dataset) -> list[Finding]:
    """Layers whose measured wavelengths are not those of the configuration."""
    found = []
    for each in planned:
        name, here = each.checkpoint.name, _own_cell(data, each.checkpoint.name)
        if each.frequencies is None or "wavelength" not in data or here is None:
            continue
        expected = np.sort(2 * np.pi / np.array(each.frequencies))
        waves = np.sort(here["wavelength"].transpose("head", "pair").to_numpy(), axis=1)  # NaN last
        rotate = (here["rope"] == 1).to_numpy()
        if "r_q_const" in here:  # only a known rotation has it; an unknown one has its own warning
            known_rotation = np.isfinite(here["r_q_const"].isel(sample=0).to_numpy())
            rotate &= known_rotation | np.isfinite(waves).any(axis=1)
        alike = np.isfinite(waves).sum(axis=1) == len(expected)
        if alike.any():
            known = waves[alike, : len(expected)]
            alike[alike] = np.isclose(known, expected, rtol=OTHER_WAVELENGTH).all(axis=1)
        other = rotate & ~alike
        if other.any():
            layers = [str(layer) for layer in np.unique(here["layer"].to_numpy()[other]).tolist()]
            parameters = json.loads(each.rotation).get("rope_parameters") or {}
            settings = ", ".join(f"{n} {x}" for n, x in parameters.items() if not isinstance(x, dict))
            which = f"layer {layers[0]} rotates" if len(layers) == 1 else f"layers {some(layers, 6)} rotate"
            seen = f"{name}: {which} with other frequencies than config.json describes ({settings})"
            why = "Loading code that ignores or changes the settings gives wavelengths that its config.json does not"
            action = "Use the measured wavelengths (measures.safetensors), and check the model's own code"
            found.append(Finding("rope", "error", (name,), seen, why, action))
    return found


def _own_cell(data: xr.Dataset, name: str) -> xr.Dataset | None:
    """The numbers of a checkpoint over its training context."""
    cells = np.flatnonzero((data["checkpoint"].to_numpy() == name) & data["own"].to_numpy())
    return data.isel(cell=int(cells[0])) if len(cells) else None


def worse_than_untrained(planned: Sequence[PlannedCheckpoint], data: xr.Dataset) -> list[Finding]:
    """Trained checkpoints whose loss is above that of step 0, or else of guessing all tokens alike, ln(vocabulary)."""
    if "loss" not in data:
        return []
    found, untrained = [], 0.0
    for each in planned:
        name = each.checkpoint.name
        if (here := _own_cell(data, name)) is None:
            continue
        values = here["loss"].to_numpy()
        se = float(jackknife(values[1:][np.isfinite(values[1:])]))
        guessing = math.log(each.vocabulary) if each.vocabulary else math.inf
        if each.checkpoint.step == 0:
            untrained = max(untrained, float(values[0]))
            continue
        limit = max(untrained, guessing)
        if values[0] - limit > max(LOSS_ABOVE, 3 * se if math.isfinite(se) else 0):
            loss = number(float(values[0]), se)
            seen = f"{name}: its loss is {loss} nats per token, that of an untrained model {limit:.2f}"
            why = "Such a model is damaged, or reads tokens or positions that it was not trained on"
            action = "Check tokenizer, RoPE settings and whether its weights are complete, or leave it out"
            found.append(Finding("loss", "error", (name,), seen, why, action))
    return found


def same_numbers(data: xr.Dataset) -> list[Finding]:
    """Checkpoints whose numbers, over the same window and documents, are the same in every head."""
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    compared = ("r_q", "r_k", "explained_variance")
    values = np.stack([data[name].isel(sample=0).to_numpy() for name in compared])  # (3, cells, heads)
    for cell in np.flatnonzero(data["own"].to_numpy()).tolist():
        if np.isfinite(values[0, cell]).any():
            texts, settings, width = (data[name].values[cell] for name in ("texts", "settings", "window"))
            alike[str(texts), str(settings), int(width)].append(cell)

    def same(a: int, b: int) -> bool:
        return np.allclose(values[:, b], values[:, a], rtol=0, atol=SAME_NUMBERS, equal_nan=True)

    found = []
    for group in (group for cells in alike.values() for group in _alike(cells, same)):
        names = [str(data["checkpoint"].values[cell]) for cell in group]
        seen = f"{names_of(names)} have the same numbers in every head on the same documents"
        why = "They have the same weights, in files that may differ: at most one is the checkpoint its name says"
        action = "Leave out all but the right one, or ask the publisher for the right files"
        found.append(Finding("identical", "error", tuple(names), seen, why, action))
    return found
