"""The embedded default: a nano SmolLM3, trained here on the standard library's sources, then measured as a study.

The model is transformers' own SmolLM3 in small: grouped queries 4:1, no rotation in every fourth layer, tied
embeddings. It reads bytes. Training follows the big one's shape: warm-up, a long constant rate, a decay in the
third stage, then two phases with a longer window and a larger rope_theta. Files kept out of training are what the
study measures on.

Training goes from checkpoint to checkpoint, each piece starting from the state file of the one before, so a run
that was killed goes on exactly as if it had not been.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np

from qkscope import store
from qkscope.checkpoints.loading import quiet_transformers
from qkscope.errors import StoreError
from qkscope.nano.recipe import (
    END,
    RECORD,
    STATE,
    WEIGHTS,
    Arrays,
    Phase,
    Piece,
    Recipe,
    State,
    Text,
    bytes_digest,
    claim_folder,
    corpus_files,
    foreign_in,
    is_whole,
    read_log,
    read_state,
    read_text,
    refuse_foreign,
    study_text,
    write_corpus,
    write_state,
)
from qkscope.progress import Bar, progress
from qkscope.results import Results, load_results, owner
from qkscope.run import run
from qkscope.scanning.ablate import ablate

STUDY = "nano.yaml"


@dataclass(frozen=True)
class DemoResult:
    """The report, the checkpoints as `train` returns them, and their results."""

    report: Path
    checkpoints: list[dict[str, Any]]
    results: Results

    def __str__(self) -> str:
        heads = self.results.heads
        lines = [
            f"{'checkpoint':<24} {'bits/byte':>9}   position share of scores, RoPE / NoPE   mean r_q, RoPE / NoPE"
        ]
        for saved in self.checkpoints:
            own = heads[heads["model"] == saved["name"]]
            rope, nope = (own[own["rope"] == value][["share_positional", "r_q"]].mean() for value in (1, 0))
            lines.append(
                f"{saved['name']:<24} {saved['bits_per_byte']:>9.2f}   {rope.share_positional:>29.0%} / "
                f"{nope.share_positional:<5.0%}   {rope.r_q:.2f} / {nope.r_q:.2f}"
            )
        return "\n".join([*lines, "", f"report: {self.report}"])


def demo(
    out: Path | str, seed: int = 0, recipe: Recipe | None = None, *, replace: bool = False
) -> DemoResult:
    """Train the nano model into `out`, run its study there, and ablate the last checkpoint's heads by class.

    What is finished already is not done again.

    Another training or other results in `out` are refused unless `replace` is true.
    """
    recipe, out = recipe or Recipe(), Path(out)
    _refuse_other_results(out, recipe, replace)
    checkpoints = train(out, seed, recipe, replace=replace)
    # The ablation draws the figures, once, with its own among them.
    results = run(write_study(out, recipe), out=out, replace=replace, figures=False)
    if not isinstance(results, Results):
        raise TypeError(f"expected Results from a complete run, found {type(results).__name__}")
    if results.ablation is None:
        ablate(
            results, parts=("position", "key", "match"), max_length=min(recipe.windows), documents=8, draws=2
        )
        results = load_results(out)
    return DemoResult(out / "report.html", checkpoints, results)


def _refuse_other_results(out: Path, recipe: Recipe, replace: bool) -> None:
    """Refuse a folder with results of another study before anything is trained."""
    path = out / STUDY
    other = path.exists() and path.read_bytes() != study_text(recipe, "").encode()
    if other and not (replace and (out / RECORD).is_file()):
        raise StoreError(
            f"{path}: not the demo's study file, which would overwrite it; choose another folder with --out, "
            "or move it away"
        )
    # The training's own record tells whether the checkpoints are the same.
    there = owner.held(out) or owner.Holding("run", "nano")
    owner.refuse_other(out, changed(there, kind="run", name="nano"), replace=replace)


def write_study(out: Path, recipe: Recipe) -> Path:
    path = out / STUDY
    store.write_text(path, study_text(recipe, ""))
    return path


def train(
    out: Path | str, seed: int = 0, recipe: Recipe | None = None, *, replace: bool = False
) -> list[dict[str, Any]]:
    """Write checkpoint folders to `out/checkpoints`, held-out files to `out/corpus`, losses to `out/training.json`.

    With `replace`, in place of another training's in `out`. Returns name, phase, window, step, held-out loss, ... of
    each checkpoint, in order.
    """
    recipe, out = recipe or Recipe(), Path(out)
    text = read_text(recipe, seed)
    # A digest of everything that determines the weights.
    key = bytes_digest(json.dumps([asdict(recipe), seed, text.digest], sort_keys=True).encode())
    with store.clear_errors(out):
        claim_folder(out, text, key, [piece.name for piece in recipe.pieces], replace)
        write_corpus(out / "corpus", text)
    whole = [is_whole(_folder(out, piece), key) for piece in recipe.pieces]
    log = read_log(out, key)
    if not log or not all(whole):
        try:
            log = _train(out, seed, recipe, text, key, whole)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; saved checkpoints are kept in {out / 'checkpoints'}: run the same command again "
                "to continue"
            ) from None
    (out / STATE).unlink(missing_ok=True)
    return log


def _train(
    out: Path, seed: int, recipe: Recipe, text: Text, key: str, whole: list[bool]
) -> list[dict[str, Any]]:
    """Train what is left, saving a checkpoint after each piece; return the log."""
    state = read_state(out / STATE, key)
    if state is None or not all(whole[: state.done - 1]):
        state = State(_untrained(recipe, seed))
    elif not whole[state.done - 1]:
        _save(out, recipe, recipe.pieces[state.done - 1], state, key)
    todo = recipe.pieces[state.done :]
    with progress("training", sum(piece.tokens for piece in todo)) as bar, _deterministic():
        for piece in todo:
            began = time.monotonic()
            _run_piece(recipe, seed, text, piece, state, bar)
            loss = _held_out_loss(recipe, text, piece, state)
            saved = {
                "name": piece.name,
                "phase": piece.phase.label,
                "window": piece.phase.window,
                "rope_theta": piece.phase.rope_theta,
                "step": piece.stop,
                "tokens": piece.tokens + (state.log[-1]["tokens"] if state.log else 0),
                "bits_per_byte": loss,
                "seconds": round(time.monotonic() - began, 2),
            }
            state.log.append(saved)
            state.done += 1
            write_state(out / STATE, state, key)
            _save(out, recipe, piece, state, key)
            bar.done(f"trained {piece.name}: {loss:.3f} bits per byte on held-out files")
    log = {"key": key, "seed": seed, "recipe": asdict(recipe), "checkpoints": state.log, "curve": state.curve}
    log["corpus"] = {name: bytes_digest(data) for name, data in corpus_files(text).items()}
    store.write_json(out / RECORD, log)
    return state.log


def _run_piece(recipe: Recipe, seed: int, text: Text, piece: Piece, state: State, bar: Bar) -> None:
    """Train from `piece.start` to `piece.stop`, in place. Batches depend on seed, phase and step alone."""
    import torch

    phase = piece.phase
    model = _model(recipe, phase, state.arrays)
    optimizer = _optimizer(recipe, model, state)
    stream = torch.from_numpy(text.stream)
    number = recipe.phases.index(phase)
    for step in range(piece.start, piece.stop):
        starts = np.random.default_rng([seed, number, step]).integers(
            0, len(stream) - phase.window, phase.batch
        )
        tokens = torch.stack([stream[i : i + phase.window + 1] for i in starts.tolist()]).long()
        for group in optimizer.param_groups:
            group["lr"] = phase.rate(step)
        loss = _loss(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        bits = loss.item() / math.log(2)
        state.curve.append({"phase": phase.label, "step": step + 1, "bits_per_byte": round(bits, 4)})
        bar.describe(f"training {phase.name}, {bits:.2f} bits per byte")
        bar.advance(tokens.shape[0] * phase.window)
    state.updates += piece.stop - piece.start
    state.arrays = _arrays(model, optimizer)


def _held_out_loss(recipe: Recipe, text: Text, piece: Piece, state: State) -> float:
    """Bits per byte on the first bytes of held-out files: the same bytes at every checkpoint, in its own window."""
    import torch

    model = _model(recipe, piece.phase, state.arrays)
    longest = max(recipe.windows)
    data = [np.frombuffer(d[:longest], np.uint8) for d in list(text.held_out.values())[: recipe.validation]]
    tokens = torch.from_numpy(np.stack(data)).long().reshape(-1, piece.phase.window)
    with torch.no_grad():
        batches = [(len(part), _loss(model, part).item()) for part in tokens.split(8)]
    return round(float(sum(n * loss for n, loss in batches)) / len(tokens) / math.log(2), 4)


def _loss(model: Any, tokens: Any) -> Any:
    """Mean cross-entropy in nats of each token of (batch, tokens) given those before it."""
    from torch.nn.functional import cross_entropy

    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _config(recipe: Recipe, phase: Phase) -> Any:
    from transformers import SmolLM3Config

    return SmolLM3Config(
        vocab_size=END + 1,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.q_heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        no_rope_layer_interval=4,
        max_position_embeddings=phase.window,
        rope_parameters={"rope_type": "default", "rope_theta": phase.rope_theta},
        initializer_range=recipe.init,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=END,
        dtype="float32",
    )


def _untrained(recipe: Recipe, seed: int) -> Arrays:
    import torch
    from transformers import SmolLM3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SmolLM3ForCausalLM(_config(recipe, recipe.phases[0]))
    arrays = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    for name in arrays:
        # Small initial outputs of each block: the residual stream is then mostly the token itself, at every depth.
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            arrays[name] *= np.float32((2 * recipe.layers) ** -0.5)
    return arrays


def _model(recipe: Recipe, phase: Phase, arrays: Arrays) -> Any:
    """The model of a phase with the weights in `arrays`. Built anew, so that its rotation is the phase's."""
    import torch
    from transformers import SmolLM3ForCausalLM

    model = SmolLM3ForCausalLM(_config(recipe, phase))
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.from_numpy(arrays[name]))
    return model


def _optimizer(recipe: Recipe, model: Any, state: State) -> Any:
    """AdamW that goes on from the moments in `state`; norms and embeddings do not decay."""
    import torch

    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": recipe.weight_decay},
        {"params": [], "weight_decay": 0.0},
    ]
    for name, value in model.named_parameters():
        decays = value.ndim == 2 and "embed" not in name
        groups[0 if decays else 1]["params"].append(value)
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=recipe.betas, fused=True)
    for name, value in model.named_parameters() if state.updates else ():
        optimizer.state[value] = {
            "step": torch.tensor(float(state.updates)),
            "exp_avg": torch.from_numpy(state.arrays[f"exp_avg.{name}"].copy()),
            "exp_avg_sq": torch.from_numpy(state.arrays[f"exp_avg_sq.{name}"].copy()),
        }
    return optimizer


def _arrays(model: Any, optimizer: Any) -> Arrays:
    """Weights and Adam's moments, by name."""
    arrays = {}
    for name, value in model.named_parameters():
        arrays[name] = value.detach().numpy()
        for moment in ("exp_avg", "exp_avg_sq") if value in optimizer.state else ():
            arrays[f"{moment}.{name}"] = optimizer.state[value][moment].numpy()
    return arrays


def _folder(out: Path, piece: Piece) -> Path:
    return out / "checkpoints" / piece.name


def _save(out: Path, recipe: Recipe, piece: Piece, state: State, key: str) -> None:
    """An ordinary checkpoint folder with model and tokenizer, written whole or not at all."""
    from safetensors import SafetensorError

    folder = _folder(out, piece)
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        with quiet_transformers():
            _model(recipe, piece.phase, state.arrays).save_pretrained(temporary)
        _tokenizer().save_pretrained(temporary)
        weights = store.file_digest(temporary / WEIGHTS)
        store.write_json(temporary / "nano.json", {"key": key, "weights": weights})
        refuse_foreign(folder, foreign_in(folder))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise StoreError(
            f"{folder}: the checkpoint cannot be written ({error}); free some space or choose another folder and "
            "run again: finished checkpoints are kept"
        ) from error


def _tokenizer() -> Any:
    """One token a byte, with the byte as its number, and one for the end of a file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {char: byte for byte, char in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    tokenizer.add_special_tokens([end])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=end)


@contextmanager
def _deterministic() -> Iterator[None]:
    """Refuse operations whose result differs from run to run, while the block runs."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
