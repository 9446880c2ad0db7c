"""DDP and FSDP2 on two processes give the numbers of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_model

import qkscope

IDS = np.random.default_rng(0).integers(3, 60, (6, 32))
SMALL = {"window": 32, "documents": 6, "groups": 3, "report_minutes": 60}
RANK = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from test_distributed import IDS, SMALL, tiny_model
import qkscope

out, kind = sys.argv[1:]
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = tiny_model(0).train()
if kind == "ddp":
    model = DistributedDataParallel(model)
else:
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
monitor = qkscope.Monitor(model, IDS, out=out, **SMALL)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
found = []
for step in range(2):
    found.append(monitor.measure(step))
    ids = torch.arange(3, 35)[None].repeat(2, 1)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
found.append(monitor.measure(2))
if dist.get_rank() == 1:
    with open(out + ".json", "w") as file:
        json.dump(found, file)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # torch's threads sometimes abort an interpreter that ends by itself
"""


def expected(out: Path) -> list[dict[str, float]]:
    """The same in this process."""
    import torch

    model = tiny_model(0).train()
    monitor = qkscope.Monitor(model, IDS, out=out, **SMALL)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for step in range(2):
        found.append(monitor.measure(step))
        ids = torch.arange(3, 35)[None].repeat(2, 1)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*found, monitor.measure(2)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.usefixtures("one_thread")
def test_two_processes_give_the_numbers_of_one(tmp_path, kind):
    out = tmp_path / kind
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    port = str(20000 + os.getpid() % 20000)
    ranks = []
    for rank in range(2):
        environment = {**os.environ, "PYTHONPATH": path, "RANK": str(rank), "WORLD_SIZE": "2"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(out), kind],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    words = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(words)
    found = json.loads((tmp_path / f"{kind}.json").read_text())
    for ours, theirs in zip(found, expected(tmp_path / "one"), strict=True):
        del ours["seconds"], theirs["seconds"]
        assert "loss" in ours
        assert ours == pytest.approx(theirs, abs=1e-6)
    units = sorted(path.parent.relative_to(out) for path in (out / "units").rglob("facts.safetensors"))
    assert len(units) == 3 * 3
