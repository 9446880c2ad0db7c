"""A callback for Hugging Face Trainer and TRL.

    trainer = Trainer(..., callbacks=[QKScopeCallback(held_out_texts, tokenizer, every=100)])

It logs to whatever the Trainer reports to (TensorBoard, W&B, trackio), and `out` becomes an ordinary results folder.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from qkscope.errors import StudyError
from qkscope.monitor import Monitor

log = logging.getLogger(__name__)
MOST_KEYS = 40
# The measure of the heat map.
MAPPED = "share_positional"


class QKScopeCallback(TrainerCallback):  # type: ignore[misc]
    """Measures the model while it trains and logs about thirty numbers, a heat map and a table of heads.

    texts      held-out texts, or lists of token ids
    tokenizer  of the texts (default: the Trainer's processing_class)
    every      a number of steps; "saves": when the Trainer saves; "log": steps 0, 1, 2, 4, 8, ...
    options    of `qkscope.Monitor`: out, window, documents, groups, loss, alarms, ...

    The first and the last step are always measured. A step that the Trainer saves is measured after saving, so that its
    units are those of `qkscope run` on the saved checkpoint. An error ends the callback with a warning, never the
    training run.
    """

    def __init__(
        self, texts: Iterable[Any], tokenizer: Any = None, every: int | str = "log", **options: Any
    ) -> None:
        if every not in ("saves", "log") and (isinstance(every, str | bool) or int(every) < 1):
            raise StudyError(f'every={every!r}; expected a number of steps, "saves" or "log"')
        self._texts, self._tokenizer, self._every, self._options = list(texts), tokenizer, every, options
        self.monitor: Monitor | None = None
        self._retired = False
        self._seconds, self._began, self._last = 0.0, 0.0, -1
        self._board: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = time.perf_counter()
        self._safely(lambda: self._start(args, state, kwargs))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        ends = control.should_training_stop or state.global_step >= state.max_steps
        if not control.should_save and (ends or self._is_due(state.global_step)):
            self._safely(lambda: self._measure(args, state))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        ends = state.global_step >= state.max_steps
        if self._every == "saves" or ends or self._is_due(state.global_step):
            saved = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self._safely(lambda: self._measure(args, state, saved if saved.is_dir() else None))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.monitor is not None:
            self._safely(self.monitor.close)
        if self._board is not None:
            self._board.close()

    def _is_due(self, step: int) -> bool:
        if self._every == "log":
            return step.bit_count() == 1
        return self._every != "saves" and step % int(self._every) == 0

    def _start(self, args: Any, state: Any, given: Mapping[str, Any]) -> None:
        tokenizer = self._tokenizer or given.get("processing_class")
        self.monitor = Monitor(given["model"], self._texts, tokenizer, **self._options)
        self.monitor.resume(state.global_step)
        if state.global_step not in self.monitor.steps:
            self._measure(args, state)

    def _measure(self, args: Any, state: Any, saved: Path | None = None) -> None:
        step = int(state.global_step)
        if self.monitor is None or step == self._last:
            return
        began = time.perf_counter()
        numbers = self.monitor.measure(step, saved)
        self._last = step
        self._seconds += time.perf_counter() - began
        numbers["overhead"] = self._seconds / max(time.perf_counter() - self._began, 1e-9)
        if not state.is_world_process_zero:
            return
        logged = dict(list(numbers.items())[: MOST_KEYS - 2])
        logged |= {name: numbers[name] for name in ("seconds", "overhead")}
        logged = {f"qkscope/{name}": x for name, x in logged.items()}
        alarms = [str(alarm) for alarm in self.monitor.alarms]
        state.log_history.append({"step": step} | logged)
        # Reporters of the Trainer do not pass on what other callbacks find.
        for reporter in [REPORTERS[name] for name in args.report_to if name in REPORTERS]:
            reporter(self, args, step, logged, self.monitor.heads(step), alarms)
        for alarm in alarms:
            log.warning("qkscope alarm: %s", alarm)

    def _safely(self, work: Callable[[], object]) -> None:
        if self._retired:
            return
        try:
            work()
        except Exception as error:
            self._retired = True
            log.warning("qkscope stopped measuring, training goes on: %s: %s", type(error).__name__, error)


Heads = Mapping[str, "np.ndarray[Any, Any]"]


def _to_tensorboard(
    callback: Any, args: Any, step: int, numbers: Mapping[str, float], heads: Heads, alarms: list[str]
) -> None:
    from torch.utils.tensorboard import SummaryWriter

    if callback._board is None:
        runs = os.environ.get("TENSORBOARD_LOGGING_DIR") or str(Path(args.output_dir) / "runs")
        callback._board = SummaryWriter(str(Path(runs).expanduser() / "qkscope"))
    for name, value in numbers.items():
        callback._board.add_scalar(name, value, step)
    callback._board.add_image(f"qkscope/{MAPPED}_map", _picture(heads), step, dataformats="HWC")
    columns = list(heads)
    rows = ["|".join(columns), "|".join("---" for _ in columns)]
    rows += ["|".join(f"{x:.4g}" for x in row) for row in zip(*heads.values(), strict=True)]
    callback._board.add_text("qkscope/heads", "\n".join(rows), step)
    for alarm in alarms:
        callback._board.add_text("qkscope/alarms", alarm, step)
    callback._board.flush()


def _to_wandb(
    callback: Any, args: Any, step: int, numbers: Mapping[str, float], heads: Heads, alarms: list[str]
) -> None:
    import wandb

    if wandb.run is None:
        return
    rows = [list(map(float, row)) for row in zip(*heads.values(), strict=True)]
    shown = {
        f"qkscope/{MAPPED}_map": wandb.Image(_picture(heads)),
        "qkscope/heads": wandb.Table(columns=list(heads), data=rows),
    }
    wandb.log({**numbers, **shown, "train/global_step": step})
    for alarm in alarms:
        wandb.run.alert(title="qkscope", text=alarm)


def _to_trackio(
    callback: Any, args: Any, step: int, numbers: Mapping[str, float], heads: Heads, alarms: list[str]
) -> None:
    import pandas as pd
    import trackio

    shown = {
        f"qkscope/{MAPPED}_map": trackio.Image(_picture(heads)),
        "qkscope/heads": trackio.Table(dataframe=pd.DataFrame(dict(heads))),
    }
    trackio.log({**numbers, **shown}, step=step)
    for alarm in alarms:
        trackio.alert(title="qkscope", text=alarm)


REPORTERS = {"tensorboard": _to_tensorboard, "wandb": _to_wandb, "trackio": _to_trackio}


def _picture(heads: Heads) -> np.ndarray[Any, Any]:
    """A heat map of a share: a row per layer, a column per head, squares of 16 pixels. (height, width, 3) bytes"""
    from qkscope.figures.style import RAMPS

    shape = 1 + int(heads["layer"].max()), 1 + int(heads["head"].max())
    found = np.full(shape, math.nan)
    found[heads["layer"], heads["head"]] = heads[MAPPED]
    colours = RAMPS["sequential"](np.ma.masked_invalid(found), bytes=True)[..., :3]
    return np.asarray(colours.repeat(16, axis=0).repeat(16, axis=1))
