"""Units that hang, and units that find too little memory: given up or done in smaller passes, and said."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_study import make_study, run_undrawn
from tiny import make_hang

from qkscope import store
from qkscope.checkpoints import Source, load_model
from qkscope.errors import CheckpointError, StudyError, out_of_memory
from qkscope.results import load_results
from qkscope.run import run, status
from qkscope.run.engines import SubprocessMeasurer, UnitQueue
from qkscope.run.units import Job
from qkscope.workers import serve

pytestmark = pytest.mark.usefixtures("no_drawing")


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path / "study", groups=2, count=4)


class Forked:
    """Stands in for `subprocess.Popen`: a worker forked from this process, which need not import torch again."""

    def __init__(self, command, *, pass_fds, **options) -> None:
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                serve(pass_fds[0], share_of=1)
            finally:
                os._exit(1)

    def kill(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code


@pytest.fixture
def forked(monkeypatch):
    """Units are measured in forked processes; how workers start is tested in test_workers.py and test_engines.py."""
    popen = SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr("qkscope.workers.subprocess", popen)


def add(study, line: str) -> None:
    study.write_text(study.read_text() + line + "\n")


def test_a_unit_that_hangs_in_a_library_is_given_up_and_the_others_are_done(
    study, tmp_path, forked, monkeypatch, capsys
):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    make_hang(study.parent / "checkpoint-2")
    add(study, "trust_remote_code: true\ntimeout: 8")
    out = tmp_path / "out"
    with pytest.raises(
        StudyError, match=r"checkpoint-2: group 0 took longer than the study's timeout of 8 s"
    ):
        run(study, out)
    found = status(out)
    assert [found.count(state) for state in ("done", "failed", "running")] == [4, 1, 0]
    assert "timeout of" in next(unit.detail for unit in found.units if unit.state == "failed")
    assert capsys.readouterr().err.count(" tokens in ") == 4
    # The others are, byte for byte, those of a run without a limit.
    plain = tmp_path / "plain"
    study.write_text(study.read_text().replace("timeout: 8", ""))
    (study.parent / "checkpoint-2" / "config.json").unlink()
    with pytest.raises(StudyError, match="checkpoint-2"):
        run(study, plain)
    assert (out / "qk.csv").read_bytes() == (plain / "qk.csv").read_bytes()


def test_a_unit_whose_process_is_killed_is_done_again_in_smaller_passes(
    study, tmp_path, forked, monkeypatch, capsys
):
    start, killed = SubprocessMeasurer._start, []

    def start_and_kill(self):
        worker = start(self)
        if not killed:
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
        return worker

    monkeypatch.setattr(SubprocessMeasurer, "_start", start_and_kill)
    add(study, "timeout: 80")
    run(study, tmp_path / "out")
    assert len(killed) == 1
    said = capsys.readouterr().err
    assert "checkpoint-1 group 0: its process was killed" in said
    assert status(tmp_path / "out").count("done") == 6


@pytest.fixture
def narrow(monkeypatch):
    """A model that finds memory for so many tokens at once and no more; the errors are torch's and numpy's own."""
    from transformers.models.llama.modeling_llama import LlamaModel

    forward = LlamaModel.forward

    def narrowed(tokens: int, library: str):
        import torch

        def short(self, input_ids=None, **options):
            if input_ids.numel() > tokens:
                torch.empty(2**58) if library == "torch" else np.empty(2**58)
            return forward(self, input_ids=input_ids, **options)

        monkeypatch.setattr(LlamaModel, "forward", short)

    return narrowed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study, which tests leave as it is, and its results without any want of memory."""
    folder = tmp_path_factory.mktemp("whole")
    study = make_study(folder / "study", groups=2, count=4)
    run_undrawn(study, folder / "out")
    return study, load_results(folder / "out")


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_a_unit_short_of_memory_is_done_in_smaller_passes_with_the_same_numbers(
    whole, tmp_path, narrow, library, capsys
):
    study, plain = whole
    narrow(48, library)
    found = run(study, tmp_path / "out")
    assert "out of memory in a pass over 2 x 48 tokens on cpu" in capsys.readouterr().err
    for name in ("r_q", "r_k", "explained_variance", "r_q_se", "r_k_se"):
        np.testing.assert_allclose(found.qk[name], plain.qk[name], rtol=1e-5, atol=1e-6)
    unit = Path("units", "checkpoint-3", "0", "moments.safetensors")
    meta = store.read_meta(tmp_path / "out" / unit)
    assert meta["key"] == store.read_meta(plain.folder / unit)["key"]
    assert meta["batch_tokens"] == 48
    capsys.readouterr()
    run(study, tmp_path / "out")
    assert "nothing changed" in capsys.readouterr().err


def test_a_unit_that_finds_no_memory_for_one_document_is_reported(study, tmp_path, narrow):
    narrow(40, "torch")
    with pytest.raises(StudyError, match=r"checkpoint-3: out of memory in a pass over 1 x 48 tokens on cpu"):
        run(study, tmp_path / "out")
    assert status(tmp_path / "out").count("done") == 4


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("the allocation of experts does not fit the shape"), False),
        (type("OutOfMemoryError", (RuntimeError,), {})("Allocation on device"), True),
        (ValueError("out of memory"), False),
    ],
)
def test_what_says_that_memory_ran_out(error, expected):
    assert out_of_memory(error) is expected


def test_torch_says_so_on_this_machine():
    import torch

    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**58)
    assert out_of_memory(raised.value)
    assert issubclass(torch.OutOfMemoryError, RuntimeError)


def test_a_model_that_finds_no_memory_is_said(study, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: torch.empty(2**58))
    with pytest.raises(CheckpointError, match=r"checkpoint-1: .*memory to load it .* try .*bfloat16"):
        load_model(Source(str(study.parent / "checkpoint-1")))


def test_on_ray_it_waits_until_all_else_is_done_and_is_done_alone():
    jobs = [Job("a", "a", group, None, {}, {}, None, (8,), 64, 100) for group in range(3)]  # type: ignore[arg-type]
    queue = UnitQueue(jobs, retries=2)
    first, second = queue.take(1), queue.take(2)
    assert queue.lose(first, "on somewhere", short_of_memory=True) is None
    third = queue.take(1)
    assert (second.group, third.group) == (1, 2)
    assert queue.take(3) is None
    queue.finish()
    assert queue.take(3) is None, "the third is still under way"
    queue.finish()
    again = queue.take(3)
    assert (again.group, again.batch_tokens) == (0, 32)
    assert queue.lose(again, "on somewhere", short_of_memory=True) is None
    assert queue.take(1).batch_tokens == 16
    assert queue.lose(again, "on somewhere", short_of_memory=True).startswith(
        "a group 0: its worker was lost 3"
    )
    assert queue.unfinished == 0
