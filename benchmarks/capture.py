"""Reading queries and keys of the real SmolLM2-135M beside its peers, in one interleaved run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import Role, Row, Side, Size, alone, interleave, peak_megabytes, say, to_base
from benchmarks.made import all_heads, documents, dumped, ids_of, smollm2

Run = Callable[[Any], object]
PLAIN, BACKBONE, EVERYTHING = "model(ids)", "backbone only", "qkscope, full capture"
WITH_LOSS = "qkscope, full capture and loss"
NNSIGHT, LENS = "nnsight, q and k saved", "TransformerLens, rot_q and rot_k cached"
EAGER, AROUND = "transformers, output_attentions", "of which outside the pass"
ONCE = "test passes, once per model (not included above)"
OF_PRODUCT = "relative to a large matmul"


def plain(model: Any) -> Run:
    return lambda document: model(ids_of(document))


def backbone(model: Any) -> Run:
    return lambda document: model.model(input_ids=ids_of(document), use_cache=False)


def hook_only(model: Any) -> Run:
    return lambda document: _captured(model, document, lambda layer, q, k: None)


def moments(model: Any) -> Run:
    """Sums of every query and key, a layer at a time, and nothing else."""
    from qkscope.sums.moments import Accumulator

    def run(document: Any) -> object:
        t = np.arange(len(document.tokens), dtype=np.float64)
        sums: dict[tuple[int, str], Accumulator] = {}

        def add(layer: int, q: Any, k: Any) -> None:
            for kind, x in (("q", q), ("k", k)):
                sums.setdefault((layer, kind), Accumulator()).update(x[0], t)

        _captured(model, document, add)
        return {key: each.moments() for key, each in sums.items()}

    return run


def _captured(model: Any, document: Any, consumer: Callable[[int, Any, Any], None]) -> object:
    from qkscope.capture import capture

    with capture(model, consumer, through="interface") as inner:
        return inner(input_ids=ids_of(document), use_cache=False)


def everything(model: Any) -> Run:
    """A unit of one document, the worst case: what a unit costs once counts in full."""
    from qkscope.capture import Probing, measure

    heads, probe = all_heads(model), Probing(model)

    def run(document: Any) -> object:
        tokens = len(document.tokens)
        return measure(model, [document], heads, (tokens,), batch_tokens=tokens, probe=probe)

    return run


def with_loss(model: Any) -> Run:
    """The same with the loss of every k-th token, k by the size of the vocabulary."""
    from qkscope.capture import Probing, measure
    from qkscope.capture.measure import STANDARD
    from qkscope.sums import LossSum, Sum

    heads, probe = all_heads(model), Probing(model)
    sums: Mapping[type[Sum], Mapping[str, Any]] = {**STANDARD, LossSum: {}}

    def run(document: Any) -> object:
        tokens = len(document.tokens)
        return measure(model, [document], heads, (tokens,), sums=sums, batch_tokens=tokens, probe=probe)

    return run


def only(kind: str, number: int) -> Callable[[Any], Run]:
    """A unit with one sum besides the facts; documents 0 and 1 of a study are searched for the largest logit."""

    def make(model: Any) -> Run:
        from qkscope.capture import Probing, measure
        from qkscope.measures.registry import sums

        heads, probe = all_heads(model), Probing(model)
        chosen: dict[Any, dict[str, Any]] = {sums()[kind]: {}} if kind else {}

        def run(document: Any) -> object:
            tokens = len(document.tokens)
            text = replace(document, index=number)
            return measure(model, [text], heads, (tokens,), batch_tokens=tokens, probe=probe, sums=chosen)

        return run

    return make


def short_passes(model: Any) -> Run:
    """What is found out about a model before its first unit."""
    from qkscope.capture import Probing

    layers = tuple(range(model.config.num_hidden_layers))
    return lambda _: Probing(model)(layers)


def nnsight(model: Any) -> Run:
    """q and k of every layer as the rotation returns them."""
    import nnsight

    # A copy, because nnsight leaves hooks and a rewritten attention behind that would slow the others.
    wrapped = nnsight.NNsight(copy.deepcopy(model))
    layers = range(model.config.num_hidden_layers)

    def run(document: Any) -> object:
        with wrapped.trace(ids_of(document)):
            attentions = [wrapped.model.layers[i].self_attn for i in layers]
            kept = nnsight.save([each.source.apply_rotary_pos_emb_0.output for each in attentions])
        return kept

    return run


def transformer_lens(model: Any) -> Run:
    """`run_with_cache` of the rotated queries and keys, on a copy of the model: the bridge rebuilds its attention."""
    from fetch_smollm2 import fetch_smollm2
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    path = fetch_smollm2()
    lens = TransformerBridge.boot_transformers(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        hf_model=copy.deepcopy(model),
        tokenizer=AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name),
        device="cpu",
    )
    wanted = {name for name in lens.hook_dict if name.endswith(("hook_rot_q", "hook_rot_k"))}

    def run(document: Any) -> object:
        _, cache = lens.run_with_cache(ids_of(document), names_filter=lambda name: name in wanted)
        if len(cache) != 2 * model.config.num_hidden_layers:
            raise RuntimeError(f"TransformerLens kept {len(cache)} tensors, expected two a layer")
        return dict(cache)

    return run


def output_attentions(model: Any) -> Run:
    """Weights of all pairs instead of queries and keys: what tools that look at attention maps pay."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    return lambda document: (
        eager.model(input_ids=ids_of(document), use_cache=False, output_attentions=True).attentions
    )


RUNS: Mapping[str, tuple[Role, Callable[[Any], Run]]] = {
    PLAIN: ("peer", plain),
    BACKBONE: ("limit", backbone),
    "our hook, no sums": ("ours", hook_only),
    "our hook, moments only": ("ours", moments),
    EVERYTHING: ("ours", everything),
    WITH_LOSS: ("ours", with_loss),
    "our hook, facts only": ("ours", only("", 2)),
    "our hook, attention rows": ("ours", only("attention", 2)),
    "our hook, repeated random tokens": ("ours", only("repeats", 2)),
    "our hook, largest logit": ("ours", only("logits", 0)),
    NNSIGHT: ("peer", nnsight),
    LENS: ("peer", transformer_lens),
    EAGER: ("peer", output_attentions),
}
KEEP_VECTORS = (EVERYTHING, NNSIGHT, LENS, EAGER)
SLOW = (LENS, EAGER)
SHORT = 16


def timing(tokens: int, size: Size, turns: int = 1) -> Iterator[Row]:
    """Every run reads the same tokens in float32 on two threads. Ratios are to plain `model(ids)` in the same
    round. Full capture: moments, path and scores of all heads, in a unit of one document, so that it bears the
    whole fixed cost of a unit. The row below it shows that cost, the next one the fixed cost per model.
    output_attentions returns the weights of all pairs instead of vectors and does not fit in memory at 4096
    tokens. At 2048 tokens, a round takes the shortest of three passes, but a single pass of the slow peers;
    bench-quick takes single passes.
    """
    import torch

    from qkscope.capture.architecture import read_architecture
    from qkscope.run.preflight import matrix_speed, pass_operations

    tokens = size.pick(tokens, tokens // 32)
    model = smollm2(size.pick(2, 1))
    names = [name for name in RUNS if name != EAGER or not (tokens > 2048 or size.quick)]
    turns = 1 if size.quick or size.tiny else turns

    def side(name: str, role: Role, run: Run, warm: int, tokens: int, turns: int) -> Side:
        texts = [*documents(turns, warm), *documents(turns * size.rounds, tokens)]
        return Side(name, role, _one_by_one(run, texts), turns=turns)

    sides = []
    for name in names:
        role, make = RUNS[name]
        sides.append(side(name, role, make(model), min(tokens, 256), tokens, 1 if name in SLOW else turns))
        if name == EVERYTHING:
            sides.append(side(AROUND, "ours", everything(model), SHORT, SHORT, turns))
            sides.append(side(ONCE, "ours", short_passes(model), SHORT, SHORT, turns))
    table = f"Capture of {tokens} tokens, SmolLM2-135M"
    with torch.no_grad():
        rows = interleave(table, sides, size.rounds)
    limit = next(row for row in rows if row.name == BACKBONE)
    operations = pass_operations(model.config, read_architecture(model.config), [tokens])
    rate = operations / median(limit.wall) / matrix_speed()
    for row in rows:
        facts: dict[str, float | str] = {"ratio to the backbone": median(to_base(row, limit))}
        if row is limit:
            facts[OF_PRODUCT] = rate
        yield replace(row, facts=facts)


def _one_by_one(run: Run, texts: Sequence[Any]) -> Callable[[], object]:
    """Each call reads the next text."""
    left = iter(texts)
    return lambda: run(next(left))


def memory(size: Size) -> Iterator[Row]:
    """Each run in its own process; memory beyond that of the loaded model. Kept: what stays in memory after the
    pass and grows with the text. Moments do not grow: a unit's file has the same size for any number of documents.
    """
    tokens = size.pick(2048, 64)
    for name, (role, _) in RUNS.items():
        facts = alone(_memory, name, tokens, size.pick(2, 1))
        say(f"memory: {name}: {facts}")
        yield Row(f"Memory of a pass over {tokens} tokens", name, role, facts=facts)


def _memory(name: str, tokens: int, threads: int) -> dict[str, float | str]:
    import torch

    model = smollm2(threads)
    run = RUNS[name][1](model)
    found: list[object] = []
    with torch.no_grad():
        run(documents(1, SHORT)[0])
        peak = peak_megabytes(lambda: found.append(run(documents(1, tokens)[0])))
    facts: dict[str, float | str] = {"peak MB": peak}
    if name == EVERYTHING:
        unit: Any = found[0]
        size = sum(map(len, dumped(unit).values()))
        facts |= {"kept kB per token": 0.0, "kept MB per unit": size / 1e6}
    elif name in KEEP_VECTORS:
        facts |= {"kept kB per token": _tensor_bytes(found[0]) / tokens / 1e3}
    return facts


def _tensor_bytes(value: Any) -> int:
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    inside = value.values() if isinstance(value, dict) else value
    return sum(_tensor_bytes(each) for each in inside)
