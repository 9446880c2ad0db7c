"""Where units run: shards and Ray do the same units as the local engine, and lose nothing when workers die."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from small_study import make_study, undrawn
from tiny import edit_config, make_hang

from qkscope.errors import EngineError, StudyError
from qkscope.run import cluster as clusters
from qkscope.run import engines, run, status
from qkscope.run.cluster import RayEngine, WorkerFacts, agreed_versions, check_versions
from qkscope.run.engines import UnitQueue, open_engine
from qkscope.run.status import parse_shard, shard_of
from qkscope.run.units import Job
from qkscope.study import load_study

pytestmark = [
    pytest.mark.usefixtures("no_drawing"),
    # Ray itself leaves sockets and processes to the collector.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
    ),
]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = make_study(tmp_path_factory.mktemp("study"), count=16)
    path.write_text(path.read_text() + "cpus: 1\nloss: true\n")
    return path


@pytest.fixture(scope="module")
def local(study, tmp_path_factory):
    """The results folder of the local engine."""
    out = tmp_path_factory.mktemp("local") / "results"
    with pytest.MonkeyPatch.context() as patch:
        undrawn(patch)
        run(study, out)
    return out


def assert_same_bytes(out: Path, expected: Path) -> None:
    """Tables, dataset, and every sum of every unit."""
    found, others = (sorted(each.relative_to(root) for each in root.glob("units/*/*/*.safetensors"))
                     for root in (out, expected))  # fmt: skip
    assert found == others
    assert {"attention", "logits", "loss", "moments", "path", "repeats", "scores"} <= {p.stem for p in found}
    for name in (*found, "measures.safetensors", "qk.csv"):
        assert (out / name).read_bytes() == (expected / name).read_bytes(), name


def jobs(*names: str, groups: int = 2) -> list[Job]:
    return [
        Job(name, name, group, None, {}, {}, None, (8,), 8, 10)  # type: ignore[arg-type]
        for name in names
        for group in range(groups)
    ]


@pytest.mark.parametrize("text", ["9/8", "0/8", "-1/8", "1", "1/0", "a/b", "", "1/2/3", "1.5/2"])
def test_shards_that_are_none(text):
    with pytest.raises(EngineError, match="expected I/N with I from 1 to N"):
        parse_shard(text)


@pytest.mark.parametrize("checkpoints", [1, 3, 10])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 10, 16, 100])
def test_every_unit_belongs_to_one_shard(checkpoints, count):
    units = [(c, g) for c in range(checkpoints) for g in range(8)]
    owners = [shard_of(c, g, checkpoints, count) for c, g in units]
    assert set(owners) <= set(range(1, count + 1))
    sizes = [owners.count(shard) for shard in range(1, count + 1)]
    if count <= checkpoints:
        assert all(
            len({o for (c, _), o in zip(units, owners, strict=True) if c == each}) == 1
            for each in range(checkpoints)
        )
        assert max(sizes) - min(sizes) <= 8
    else:
        assert len(set(owners)) == min(
            count, sum(min(8, len(range(c, count, checkpoints))) for c in range(checkpoints))
        )


def test_shards_then_one_run_that_merges(study, local, tmp_path, capsys):
    out = tmp_path / "results"
    for number in (1, 3):
        found = run(study, out, shard=f"{number}/3")
    assert found.count("done") == 8
    assert found.count("waiting") == 4
    assert not (out / "qk.csv").exists()
    capsys.readouterr()
    run(study, out)
    said = capsys.readouterr().err
    assert "shard 2/3" in said
    assert "4 missing units (checkpoint-2)" in said
    assert_same_bytes(out, local)
    assert not (out / "shards").exists()
    assert status(out).count("done") == 12


def test_more_shards_than_checkpoints(study, local, tmp_path, capsys):
    out = tmp_path / "results"
    counts = [run(study, out, shard=f"{number}/5").count("done") for number in range(1, 6)]
    assert counts == [2, 4, 8, 10, 12]
    capsys.readouterr()
    run(study, out)
    assert "shard" not in capsys.readouterr().err
    assert_same_bytes(out, local)


def test_shards_of_an_edited_study_keep_the_units_that_still_match(study, tmp_path, capsys):
    out, alone = tmp_path / "results", tmp_path / "alone"
    other = study.with_name("other.yaml")
    other.write_text(study.read_text() + "batch_tokens: 64\n")
    run(study, out, shard="1/3")
    run(other, out, shard="2/3")
    capsys.readouterr()
    run(other, out)
    said = capsys.readouterr().err
    assert "checkpoint-1, all groups: measuring again, because batch_tokens was" in said
    assert "4 of 12 units are already done" in said
    run(other, alone)
    assert (out / "qk.csv").read_bytes() == (alone / "qk.csv").read_bytes()


def test_a_whole_run_that_fails_leaves_its_own_plan_to_status(study, tmp_path):
    out, folder = tmp_path / "results", tmp_path / "study"
    shutil.copytree(study.parent, folder)
    run(folder / study.name, out, shard="1/3")
    edited = folder / "edited.yaml"
    edited.write_text((folder / study.name).read_text() + "batch_tokens: 64\n")
    (folder / "checkpoint-2" / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(StudyError, match="checkpoint-2"):
        run(edited, out)
    found = status(out)
    assert [found.count(state) for state in ("done", "failed")] == [8, 1]
    assert not list(out.glob("shards/*.json"))


def test_work_may_be_split_into_another_number_of_shards(study, local, tmp_path, capsys):
    out = tmp_path / "results"
    run(study, out, shard="1/3")
    found = run(study, out, shard="1/2")
    assert found.count("done") == 8
    assert [path.name for path in (out / "shards").glob("*.json")] == ["plan-1-of-2.json"]
    capsys.readouterr()
    run(study, out)
    assert "shard 2/2" in capsys.readouterr().err
    assert_same_bytes(out, local)


def test_a_shard_that_was_killed_goes_on_with_its_own_units(study, local, tmp_path, monkeypatch):
    out = tmp_path / "results"
    do_unit, done = engines.do_unit, []

    def killed_at_the_third(*args):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(do_unit(*args))

    with monkeypatch.context() as patch:
        patch.setattr(engines, "do_unit", killed_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            run(study, out, shard="1/3")
    assert status(out).count("done") == 2
    assert run(study, out, shard="1/3").count("done") == 4
    run(study, out)
    assert_same_bytes(out, local)


def test_shard_and_ray_exclude_each_other(study, tmp_path):
    with pytest.raises(EngineError, match="--shard"):
        run(study, tmp_path, engine="ray", shard="1/2")


def test_an_unknown_engine(study):
    with pytest.raises(EngineError, match="engine 'dask'; use local or ray"):
        open_engine("dask", load_study(study))


def test_a_worker_keeps_its_checkpoint_and_helps_when_idle():
    queue = UnitQueue(jobs("a", "b", groups=3), retries=2)
    assert str(queue.take(1)) == "a group 0"
    assert str(queue.take(2)) == "b group 0"
    assert str(queue.take(2)) == "b group 1"
    assert str(queue.take(2)) == "b group 2"
    assert str(queue.take(2)) == "a group 1"
    assert str(queue.take(1)) == "a group 2"
    assert queue.take(1) is None


def test_a_lost_unit_is_tried_again_and_then_given_up():
    queue = UnitQueue(jobs("a", "b", groups=2), retries=2)
    for _ in range(2):
        job = queue.take(1)
        assert str(job) == "a group 0"
        assert queue.lose(job, "on somewhere") is None
    why = queue.lose(queue.take(1), "on somewhere")
    assert "lost 3 times" in why
    assert queue.failures == {"a": why}
    rest = [queue.take(1) for _ in range(3)]
    assert [str(job) for job in rest] == ["a group 1", "b group 0", "b group 1"]
    for _ in rest:
        queue.finish()
    assert queue.unfinished == 0


def test_a_unit_that_raises_ends_its_checkpoint():
    queue = UnitQueue(jobs("a", "b", groups=3), retries=2)
    first, second = queue.take(1), queue.take(1)
    queue.fail(first, "broken")
    assert queue.lose(second, "on somewhere") == "broken"
    assert queue.unfinished == 3
    assert [str(queue.take(1)) for _ in range(3)] == [f"b group {group}" for group in range(3)]


def test_the_slot_of_a_worker():
    def node(alive=True, **resources):
        return {"Alive": alive, "Resources": resources}

    assert clusters._slot([node(CPU=8, GPU=4), node(CPU=8)], None, None) == (1, 1)
    assert clusters._slot([node(CPU=8), node(CPU=4)], None, None) == (0, 4)
    assert clusters._slot([node(CPU=8)], None, 2) == (0, 2)
    assert clusters._slot([node(CPU=8, GPU=4)], 2, 3) == (2, 3)
    assert clusters._slots_of(node(CPU=8, GPU=4), 2, 3) == 2
    with pytest.raises(EngineError, match=r"needs 8 GPUs and 1 CPUs .* at most 4 GPUs and 8 CPUs"):
        clusters._slot([node(CPU=8, GPU=4), node(CPU=8, GPU=4), node(alive=False, CPU=8, GPU=8)], 8, None)
    with pytest.raises(EngineError, match="change gpus and cpus"):
        clusters._slot([node(CPU=8)], None, 16)


def test_workers_with_other_versions_are_refused():
    own = agreed_versions()
    check_versions(own, WorkerFacts("far", own, shared=True))
    other = {**own, "torch": "1.0"}
    with pytest.raises(EngineError, match=rf"the worker on far has torch 1\.0 instead of {own['torch']}"):
        check_versions(own, WorkerFacts("far", other, shared=True))


def test_no_ray_installed(study, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(EngineError, match=r"pip install 'qkscope\[dist\]'"):
        run(study, tmp_path / "results", engine="ray")


def test_an_unreachable_cluster(study, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(EngineError, match=r"RAY_ADDRESS=127\.0\.0\.1:9"):
        run(study, tmp_path / "results", engine="ray")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A cluster of two nodes with one CPU each, on this machine; lost nodes are noticed quickly."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["HF_MODULES_CACHE"] = str(tmp_path_factory.mktemp("modules"))
    import ray
    from ray.cluster_utils import Cluster

    health = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
    }
    small = {"object_store_memory": 80 * 2**20}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": health, **small}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, **small)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    del os.environ["HF_MODULES_CACHE"]
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class Watcher(threading.Thread):
    """Calls `strike` with the process of a unit's worker as soon as its mark appears, at most `times` times."""

    def __init__(self, out: Path, unit: str, strike, times: int = 10**6) -> None:
        super().__init__(daemon=True)
        self._mark, self._strike, self._times = out / "units" / f"{unit}.running", strike, times
        self.struck: list[int] = []
        self.over = False

    def run(self) -> None:
        while not self.over and len(self.struck) < self._times:
            try:
                pid = json.loads(self._mark.read_text())["pid"]
            except (OSError, ValueError):
                pid = None
            if pid is not None and pid not in self.struck:
                self.struck.append(pid)
                self._strike(pid)
            time.sleep(0.001)

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True
        self.join()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_ray_gives_the_same_bytes_as_local_and_a_killed_worker_costs_one_retry(
    nodes, study, tmp_path, capsys
):
    """Counterfactual units too: one checkpoint has a rotation of its own."""
    folder = tmp_path / "study"
    shutil.copytree(study.parent, folder)
    edit_config(folder / "checkpoint-3", rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    outs = {engine: tmp_path / engine for engine in ("local", "ray")}
    with Watcher(outs["ray"], "checkpoint-1/0", kill, times=1) as once:
        for engine, out in outs.items():
            run(folder / study.name, out, engine=engine)
            said = capsys.readouterr().err
            assert "[20/20]" in said
            assert said.count(" tokens in ") == 20
    assert len(once.struck) == 1
    lost = [line for line in said.splitlines() if "was lost" in line]
    assert [line.partition(":")[0] for line in lost] == ["checkpoint-1 group 0"]
    made = {path.parent.parent.name for path in outs["ray"].glob("units/*/*/moments.safetensors")}
    assert sum("~" in name for name in made) == 2
    assert_same_bytes(outs["ray"], outs["local"])
    assert (outs["ray"] / "causes.csv").read_bytes() == (outs["local"] / "causes.csv").read_bytes()
    assert list(outs["ray"].rglob("*.running")) == []
    assert list(outs["ray"].rglob(".seen-*")) == []


def test_without_shared_storage_the_driver_writes_and_what_hangs_or_is_broken_is_reported(
    nodes, tmp_path, monkeypatch
):
    path = make_study(tmp_path / "study", groups=2, count=4)
    make_hang(path.parent / "checkpoint-2")
    (path.parent / "checkpoint-3" / "model.safetensors").write_bytes(b"not weights")
    path.write_text(path.read_text() + "cpus: 1\ntrust_remote_code: true\n")
    run(path, tmp_path / "local", shard="1/3")
    path.write_text(path.read_text() + "timeout: 8\n")
    check, write, written = clusters.check_versions, clusters.store.write_bytes, []

    def blind(driver, facts):
        object.__setattr__(facts, "shared", False)
        check(driver, facts)

    monkeypatch.setattr(clusters, "check_versions", blind)
    monkeypatch.setattr(
        clusters.store, "write_bytes", lambda path, data: (written.append(path), write(path, data))
    )
    out = tmp_path / "results"
    with pytest.raises(StudyError) as raised:
        run(path, out, engine="ray")
    assert "checkpoint-2: group 0 took longer than the study's timeout of 8 s" in str(raised.value)
    assert "checkpoint-3: " in str(raised.value)
    found = status(out)
    assert (found.count("done"), found.count("running")) == (2, 0)
    failed = {unit.checkpoint for unit in found.units if unit.state == "failed"}
    assert failed == {"checkpoint-2", "checkpoint-3"}
    units = [path for path in written if path.match("units/*/*/moments.safetensors")]
    assert sorted(unit.parent.name for unit in units) == ["0", "1"]
    for unit in units:
        assert unit.read_bytes() == (tmp_path / "local" / unit.relative_to(out)).read_bytes()


def test_workers_that_ray_ends_for_want_of_memory(study, tmp_path):
    at_once = study.with_name("at_once.yaml")
    at_once.write_text(study.read_text() + "retries: 0\n")
    # More than one hundredth of the memory is always in use, so Ray ends every worker that it starts.
    scarce = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "50"}
    command = [
        sys.executable,
        "-m",
        "qkscope",
        "run",
        str(at_once),
        "--engine",
        "ray",
        "--out",
        str(tmp_path / "r"),
    ]
    done = subprocess.run(command, env=os.environ | scarce, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "workers end before they start: Ray ended them because their node is out of memory" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "r").rglob("*.running"))


def test_too_few_gpus_are_said_at_once(nodes, study):
    demanding = study.with_name("demanding.yaml")
    demanding.write_text(study.read_text() + "gpus: 4\n")
    with pytest.raises(EngineError, match="needs 4 GPUs"):
        RayEngine(load_study(demanding))


def test_a_removed_node_costs_one_retry_and_a_unit_that_always_dies_is_reported(
    nodes, study, local, tmp_path, capsys
):
    """Last: it leaves the cluster with one node."""
    out = tmp_path / "results"
    doomed = nodes.list_all_nodes()[-1]
    raylet = doomed.all_processes["raylet"][0].process.pid

    def remove(pid: int) -> None:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        if parent == raylet:
            nodes.remove_node(doomed, allow_graceful=False)

    # Each worker begins with the first group of a checkpoint of its own; one of the two lives on the doomed node.
    with (
        Watcher(out, "checkpoint-1/0", remove),
        Watcher(out, "checkpoint-2/0", remove),
        Watcher(out, "checkpoint-3/0", kill) as always,
        pytest.raises(StudyError, match="checkpoint-3 group 0: its worker was lost 3 times"),
    ):
        run(study, out, engine="ray")
    assert len(always.struck) == 3
    said = capsys.readouterr().err
    retried = [line.partition(" group")[0] for line in said.splitlines() if "measuring it again" in line]
    assert sorted(retried)[1:] == ["checkpoint-3", "checkpoint-3"]
    assert retried[0] in ("checkpoint-1", "checkpoint-2")
    assert said.count(" tokens in ") == 11
    found = status(out)
    assert [found.count(state) for state in ("done", "failed", "running")] == [11, 1, 0]
    rows = {
        name: [line for line in table.splitlines() if not line.startswith(b"checkpoint-3,")]
        for name, table in (
            ("ray", (out / "qk.csv").read_bytes()),
            ("local", (local / "qk.csv").read_bytes()),
        )
    }
    assert rows["ray"] == rows["local"]
