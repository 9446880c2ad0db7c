"""The hub's bad days, each through the real hub client against a server on 127.0.0.1."""

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
import torch
import yaml
from hub_server import serve
from small_study import make_study, write_texts

from qkscope.checkpoints import (
    Source,
    checkpoints_yaml,
    hub,
    list_revisions,
    load_config,
    load_model,
    load_tokenizer,
    resolve,
)
from qkscope.corpus import load_corpus
from qkscope.errors import CheckpointError, CorpusError, EngineError, HubError, StoreError
from qkscope.run import run
from qkscope.run.engines import WeightPrefetcher
from qkscope.run.units import UnitMeasurer, key_of
from qkscope.study import CorpusSpec

REPO = "lab/run"
REVISIONS = ("stage1-step-100", "stage1-step-2000", "lc-1k-to-2k-step-5", "main")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    for seed, revision in enumerate(REVISIONS):
        tiny.save_checkpoint(root / "models" / REPO / revision, seed)
    tiny.save_checkpoint(root / "models/lab/sharded/main", shard="20KB")
    broken = tiny.save_checkpoint(root / "models/lab/broken/main", shard="20KB")
    next(iter(sorted(broken.glob("model-00002*")))).unlink()
    tiny.tiny_tokenizer().save_pretrained(root / "models/lab/tokenizer/main")
    write_datasets(root / "datasets")
    with serve(root) as running:
        yield running


def write_datasets(root):
    """Records as datasets on the hub hold them: split in shards, as JSONL, by configuration, converted."""

    def write(path, texts):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        table = pa.table({"id": [f"{Path(path).stem[:4]}{i}" for i in range(len(texts))], "text": texts})
        pq.write_table(table, root / path)

    write("lab/long/main/data/test-00000-of-00002.parquet", ["the cat", "the dog sat"])
    write("lab/long/main/data/test-00001-of-00002.parquet", ["a quick fox"])
    write("lab/long/main/data/train-00000-of-00001.parquet", ["a mat"])
    write("lab/many/main/en/test.parquet", ["the cat"])
    write("lab/many/main/de/test.parquet", ["the dog"])
    write("lab/converted/refs%2Fconvert%2Fparquet/default/train/0000.parquet", ["the brown fox"])
    for name, text in {
        "lines/main/all.jsonl": '{"text": "the mat"}\n',
        "converted/main/data.csv": "text\nx\n",
    }.items():
        (root / "lab" / name).parent.mkdir(parents=True)
        (root / "lab" / name).write_text(text)


@pytest.fixture(autouse=True)
def client(server, tmp_path, monkeypatch):
    """The hub client of this process, pointed at the server, with an empty cache; retries do not dawdle."""
    point_at(monkeypatch, server.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    server.fault()


def point_at(monkeypatch, url):
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )


def offline(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def same(model, seed):
    expected = tiny.tiny_model(seed).state_dict()
    return all(torch.equal(expected[name], tensor) for name, tensor in model.state_dict().items())


def test_list_load_and_record_hashes(server):
    assert [r.name for r in list_revisions(REPO)] == list(REVISIONS)
    for seed, revision in enumerate(REVISIONS[:2]):
        source = Source(REPO, revision)
        assert resolve(source).commit == server.commit(REPO, revision)
        assert same(load_model(source), seed)
    assert same(load_model(Source(REPO)), 3)


def test_ls_prints_the_phases_to_paste():
    study = yaml.safe_load(text := checkpoints_yaml(REPO))
    assert study["model"] == REPO
    assert [[c["revision"] for c in p["checkpoints"]] for p in study["phases"]] == [
        list(REVISIONS[:2]),
        [REVISIONS[2]],
    ]
    assert [p["window"] for p in study["phases"]] == [1024, 2048]
    assert "main" in next(line for line in text.splitlines() if "left out" in line.lower())


def test_what_is_there_is_not_fetched_again(server):
    load_model(Source(REPO))
    server.fault()
    assert same(load_model(Source(REPO)), 3)
    assert not [path for _, path, _ in server.requests() if "/resolve/" in path]


def test_the_configuration_alone_does_not_fetch_the_weights(server):
    assert load_config(Source(REPO, "stage1-step-100")).num_hidden_layers == 2
    resolve(Source(REPO, "stage1-step-100"))
    assert not [path for _, path, _ in server.requests() if path.endswith("safetensors")]


def test_shards(server):
    assert same(load_model(Source("lab/sharded")), 0)


def test_the_tokenizer_comes_from_elsewhere():
    with pytest.raises(CheckpointError, match=r"no tokenizer.*`tokenizer: FOLDER`"):
        load_tokenizer(Source(REPO))
    assert load_tokenizer(Source(REPO, tokenizer="lab/tokenizer"))("the cat")["input_ids"] == [1, 3, 7]


def test_a_missing_revision_names_the_nearest():
    with pytest.raises(
        HubError, match=r"no such revision; did you mean stage1-step-2000 or stage1-step-100\?"
    ) as error:
        load_model(Source(REPO, "stage1-step-1900"))
    assert "qkscope ls lab/run` lists all 4" in str(error.value)
    with pytest.raises(HubError, match=r"did you mean main\?"):
        resolve(Source(REPO, "mian"))
    with pytest.raises(
        HubError, match=r"no such revision; it has lc-1k-to-2k-step-5, main, stage1-step-100 and 1 more"
    ):
        resolve(Source(REPO, "zzz"))


def test_a_repository_that_is_not_there_or_private():
    for ask in (lambda: load_model(Source("lab/nothing")), lambda: list_revisions("lab/nothing")):
        with pytest.raises(HubError, match=r"lab/nothing.*private.*hf auth login"):
            ask()


def test_a_token_that_may_not_read(server):
    server.fault({"match": "GET /api/models/lab/run", "action": "status", "status": 403})
    with pytest.raises(HubError, match=r"private one.*HF_TOKEN"):
        load_model(Source(REPO))


def test_a_gated_repository_shows_its_list_and_refuses_its_files(server):
    gated = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model lab/run is restricted."}
    server.fault({"match": "/resolve/", "action": "status", "status": 403, "headers": gated})
    with pytest.raises(HubError, match=rf"is gated: accept its terms on {server.url}/lab/run, then log in"):
        load_model(Source(REPO))


def test_an_incomplete_revision_is_noticed_before_its_weights_are_fetched(server):
    with pytest.raises(
        CheckpointError, match=r"lab/broken: incomplete:.*model-00002-of-00005\.safetensors.*missing"
    ):
        load_model(Source("lab/broken"))
    assert not [path for _, path, _ in server.requests() if path.endswith(".safetensors")]


def test_a_file_that_is_listed_but_gone(server):
    gone = {"X-Error-Code": "EntryNotFound"}
    server.fault({"match": "model.safetensors", "action": "status", "status": 404, "headers": gone})
    with pytest.raises(HubError, match="incomplete, a file it lists is missing on the hub"):
        load_model(Source(REPO))


@pytest.mark.parametrize("where", ["GET /api/models/lab/run/revision", "GET .*model.safetensors"])
def test_a_rate_limit_is_waited_out(server, where, caplog):
    after = {"Retry-After": "1"}
    server.fault({"match": where, "action": "status", "status": 429, "headers": after, "times": 1})
    with caplog.at_level(logging.WARNING):
        assert same(load_model(Source(REPO, "main")), 3)
    assert "429" in caplog.text


@pytest.mark.parametrize("where", ["GET /api/models/lab/run", "GET .*model.safetensors"])
@pytest.mark.parametrize("headers", [{"Retry-After": "86400"}, {"RateLimit": '"api";r=0;t=7200'}])
def test_a_rate_limit_of_hours_is_not(server, where, headers):
    server.fault({"match": where, "action": "status", "status": 429, "headers": headers})
    with pytest.raises(HubError, match=r"asks to wait (86400|720\d) s \(its rate limit\); run again later"):
        load_model(Source(REPO))


def test_a_rate_limit_that_never_ends_is_given_up(server, monkeypatch):
    monkeypatch.setattr(hub.time, "sleep", lambda seconds: None)
    server.fault({"match": "GET /api/models/lab/run", "action": "status", "status": 429})
    with pytest.raises(HubError, match=r"\(429\)"):
        load_model(Source(REPO))
    assert len(server.requests()) == hub.ATTEMPTS


def test_a_server_error_passes(server):
    server.fault({"match": "GET /api/models/lab/run", "action": "status", "status": 503, "times": 1})
    assert same(load_model(Source(REPO)), 3)


def test_a_server_error_that_stays(server, monkeypatch):
    monkeypatch.setattr(hub.time, "sleep", lambda seconds: None)
    server.fault({"match": ".", "action": "status", "status": 502})
    with pytest.raises(HubError, match=r"HTTP 502"):
        load_model(Source(REPO))


def test_maintenance_of_hours_is_not_waited_for(server):
    server.fault({"match": "HEAD ", "action": "status", "status": 503, "headers": {"Retry-After": "7200"}})
    with pytest.raises(HubError, match=r"the hub asks to wait 7200 s \(HTTP 503\)"):
        load_model(Source(REPO))


def test_a_slow_connection_is_only_slow(server):
    server.fault({"match": "GET .*model.safetensors", "action": "slow", "seconds": 2})
    assert same(load_model(Source(REPO)), 3)


def test_a_download_that_stops_half_way_goes_on_from_there(server, monkeypatch):
    monkeypatch.setattr(
        huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 4096
    )  # the client keeps whole chunks
    server.fault({"match": "GET .*model.safetensors", "action": "drop", "times": 1})
    assert same(load_model(Source(REPO)), 3)
    ranges = [
        r for method, path, r in server.requests() if method == "GET" and path.endswith("model.safetensors")
    ]
    size = (server.root / "models" / REPO / "main" / "model.safetensors").stat().st_size
    assert ranges == [None, f"bytes={size // 2 // 4096 * 4096}-"]


def test_a_connection_that_keeps_dying_ends_in_words_and_the_next_run_goes_on(server, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    server.fault({"match": "GET .*model-00003.*safetensors", "action": "status", "status": 500})
    with pytest.raises(HubError, match=r"HTTP 500"):
        load_model(Source("lab/sharded"))
    server.fault()
    assert same(load_model(Source("lab/sharded")), 0)
    fetched = {
        Path(path).name for method, path, _ in server.requests() if method == "GET" and "resolve" in path
    }
    assert "model-00003-of-00005.safetensors" in fetched
    assert "model-00001-of-00005.safetensors" not in fetched


def test_a_hub_that_does_not_answer_is_not_waited_for(server, monkeypatch):
    monkeypatch.setattr(hub, "ANSWER_SECONDS", 0.3)
    server.fault({"match": "GET /api", "action": "stall", "seconds": 20})
    for ask in (lambda: load_model(Source(REPO)), lambda: list_revisions(REPO)):
        with pytest.raises(HubError, match=r"cannot be reached.*HF_HUB_OFFLINE=1"):
            ask()


def test_an_unreachable_hub_says_how_to_work_offline(monkeypatch):
    point_at(monkeypatch, closed_port())
    with pytest.raises(HubError, match=r"cannot be reached.*give a local folder.*HF_HUB_OFFLINE=1"):
        load_model(Source(REPO))
    with pytest.raises(HubError, match="cannot be reached"):
        list_revisions(REPO)


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_the_cache_serves_when_the_hub_is_away(server, monkeypatch, caplog):
    load_model(Source(REPO, "stage1-step-100"))
    point_at(monkeypatch, closed_port())
    with caplog.at_level(logging.WARNING):
        assert same(load_model(Source(REPO, "stage1-step-100")), 0)
    assert "cached copy" in caplog.text
    assert resolve(Source(REPO, "stage1-step-100")).commit == server.commit(REPO, "stage1-step-100")
    with pytest.raises(HubError, match="cannot be reached"):
        load_model(Source(REPO, "stage1-step-2000"))


def test_offline_mode_uses_what_is_complete_and_says_what_is_not(server, monkeypatch):
    load_model(Source("lab/sharded"))
    load_config(Source(REPO))
    server.fault()
    offline(monkeypatch)
    assert same(load_model(Source("lab/sharded")), 0)
    assert load_config(Source(REPO)).hidden_size == 32
    with pytest.raises(CheckpointError, match="no weights"):
        load_model(Source(REPO))
    with pytest.raises(HubError, match=r"lab/run@stage1-step-100 is not in the hub cache.*HF_HUB_OFFLINE"):
        load_model(Source(REPO, "stage1-step-100"))
    with pytest.raises(HubError, match="revisions cannot be listed while HF_HUB_OFFLINE is set"):
        list_revisions(REPO)
    assert server.requests() == []


def test_a_cached_copy_that_lost_a_shard(monkeypatch):
    load_model(Source("lab/sharded"))
    cache = Path(huggingface_hub.constants.HF_HUB_CACHE)
    next(cache.rglob("model-00004*")).unlink()
    offline(monkeypatch)
    with pytest.raises(CheckpointError, match=r"incomplete.*model-00004"):
        load_model(Source("lab/sharded"))


def test_a_full_disk(monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(HubError, match=r"the disk is full.*HF_HOME"):
        load_model(Source(REPO))


def test_a_name_that_no_hub_could_have():
    with pytest.raises(HubError, match="neither a folder on this machine nor a name on the hub"):
        load_model(Source("lab/my model"))


def test_the_client_is_left_as_it_was():
    hooks = {key: list(value) for key, value in huggingface_hub.get_session().event_hooks.items()}
    load_config(Source(REPO))
    assert huggingface_hub.get_session().event_hooks == hooks


def texts(source, **settings):
    corpus = load_corpus(CorpusSpec(source=[f"hub:{source}"], **settings), tiny.tiny_tokenizer(), 100)
    return [(d.name, len(d.tokens)) for d in corpus.documents], corpus.origin


def test_a_dataset_gives_the_records_of_its_split(server):
    records, origin = texts("lab/long", split="test", id_column="id")
    assert records == [("test0", 3), ("test1", 4), ("test0", 4)]
    assert origin == f"hub:lab/long@{server.commit('lab/long', 'main', 'datasets')} split test"
    assert texts("lab/lines")[0] == [("all.jsonl:1", 3)]
    assert texts("lab/many/de", split="test", id_column="id")[0] == [("test0", 3)]
    assert texts("lab/converted", id_column="id")[0] == [("00000", 4)]


def test_only_the_files_that_are_needed_are_fetched(server):
    texts("lab/long", split="test", documents=2)
    assert {p for _, p, _ in server.requests() if "parquet" in p and "00001-of-00002" in p} == set()


def test_datasets_that_do_not_serve(server):
    with pytest.raises(
        CorpusError, match=r"no \.parquet or \.jsonl files of split 'dev'; found data/test-00000"
    ):
        texts("lab/long", split="dev")
    with pytest.raises(CorpusError, match=r"split 'test' .*hub:lab/many/de"):
        texts("lab/many", split="test")
    with pytest.raises(HubError, match=r"dataset lab/nothing: no such dataset on the hub, or a private one"):
        texts("lab/nothing")
    with pytest.raises(HubError, match=r"dataset lab/long@v9: no such revision; it has main"):
        texts("lab/long", revision="v9")


def test_a_dataset_survives_a_bad_day_and_is_there_offline(server, monkeypatch):
    busy = {"action": "status", "status": 429, "headers": {"Retry-After": "1"}, "times": 1}
    server.fault(
        {"match": "GET /api/datasets", **busy}, {"match": "GET .*parquet", "action": "drop", "times": 1}
    )
    online = texts("lab/long", split="test")
    offline(monkeypatch)
    assert texts("lab/long", split="test") == online
    with pytest.raises(HubError, match="dataset lab/lines "):
        texts("lab/lines")


def test_settings_from_the_environment_in_a_process_of_its_own(server, tmp_path):
    """HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE are read when the client is imported."""
    code = (
        "from qkscope.checkpoints import Source, resolve\n"
        "print(resolve(Source('lab/run', 'stage1-step-2000')).commit)"
    )
    env = os.environ | {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home")}
    online = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert online.stdout.strip() == server.commit(REPO, "stage1-step-2000")
    server.fault()
    env["HF_HUB_OFFLINE"] = "1"
    again = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert again.stdout == online.stdout
    assert server.requests() == []


def test_nothing_is_drawn_where_there_is_no_terminal(capfd):
    load_model(Source("lab/sharded"))
    assert capfd.readouterr() == ("", "")


def test_a_branch_that_moves_in_mid_study_is_measured_at_one_commit(
    server, tmp_path, monkeypatch, no_drawing
):
    """After the first unit, and before the weights of the second checkpoint are fetched, both branches move."""
    branches = ("step-1", "step-2")
    for seed, branch in enumerate(branches):
        tiny.save_checkpoint(server.root / "models/lab/moving" / branch, seed, rope_theta=10.0 ** (4 + seed))
    study = make_study(tmp_path / "study", groups=2, count=4)
    path = study.with_name("moving.yaml")
    path.write_text(
        "name: moving\nmodel: lab/moving\nwindows: [16]\ncorpus: texts\ngroups: 2\ndevice: cpu\ntokenizer: tokenizer\n"
        "checkpoints: [{revision: step-1}, {revision: step-2}]\n"
    )
    before = {branch: server.commit("lab/moving", branch) for branch in branches}
    new = tiny.save_checkpoint(tmp_path / "new", 9)
    (new / "README.md").write_text("moved")
    measure = UnitMeasurer.measure

    def moving(self, job, documents, on_tokens):
        unit = measure(self, job, documents, on_tokens)
        for branch in branches:
            if server.commit("lab/moving", branch) == before[branch]:
                server.move("lab/moving", branch, new)
        return unit

    monkeypatch.setattr(UnitMeasurer, "measure", moving)
    run(path, tmp_path / "out")
    assert all(server.commit("lab/moving", branch) != before[branch] for branch in branches)
    keys = {
        p.parent.parent.name: key_of(p)["checkpoint"]
        for p in (tmp_path / "out").glob("units/*/*/moments.safetensors")
    }
    assert keys["step-1"] == keys["step-1~rotation-of-step-2"] == before["step-1"]
    assert keys["step-2"] == keys["step-2~rotation-of-step-1"] == before["step-2"]
    monkeypatch.setattr(UnitMeasurer, "measure", measure)
    with pytest.raises(StoreError, match="--replace"):
        run(path, tmp_path / "out")
    again = run(path, tmp_path / "out", replace=True)
    assert again.provenance["checkpoints"]["step-1"]["commit"] == server.commit("lab/moving", "step-1")


@pytest.fixture
def children(server, tmp_path, monkeypatch):
    """Processes that this one starts meet the same hub and the same cache."""
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))


def weights_asked(server):
    """The commits whose weights were downloaded."""
    asked = [path.partition("/resolve/")[2] for method, path, _ in server.requests() if method == "GET"]
    return [path.split("/")[0] for path in asked if path.endswith(".safetensors")]


def test_the_weights_of_the_next_checkpoint_come_while_this_one_is_measured(server, children):
    first, second, third = (Source(REPO, revision) for revision in REVISIONS[:3])
    ahead = WeightPrefetcher([first, first, second, third])
    load_model(first)
    for _ in range(2):
        ahead.fetch_after(first)
    ahead.wait_for(second)
    assert weights_asked(server) == [server.commit(REPO, each.revision) for each in (first, second)]
    assert same(load_model(second), 1)
    ahead.fetch_after(third)
    ahead.close()
    assert len(weights_asked(server)) == 2


def test_a_fetch_that_fails_is_the_business_of_who_loads(server, children):
    missing = Source(REPO, "no-such")
    ahead = WeightPrefetcher([Source(REPO, REVISIONS[0]), missing])
    ahead.fetch_after(Source(REPO, REVISIONS[0]))
    ahead.wait_for(missing)
    with pytest.raises(HubError, match="no-such"):
        load_model(missing)


def hub_study(tmp_path, extra=""):
    write_texts(tmp_path / "texts")
    revisions = ", ".join(f"{{revision: {name}}}" for name in REVISIONS[:3])
    path = tmp_path / "study.yaml"
    path.write_text(
        f"name: hub\nmodel: {REPO}\ntokenizer: lab/tokenizer\nwindows: [16]\ngroups: 2\ncomponents: 4\ndevice: cpu\n"
        f"corpus: texts\ncheckpoints: [{revisions}]\n{extra}"
    )
    return path


def test_weights_that_came_for_a_run_go_when_they_are_done_with(
    server, children, tmp_path, monkeypatch, capsys
):
    results = SimpleNamespace(provenance={}, heads=None)
    monkeypatch.setattr("qkscope.run.pipeline._put_together", lambda *arguments: results)
    monkeypatch.setattr("qkscope.run.pipeline.unmeasured_warnings", lambda heads: {})
    monkeypatch.setattr("qkscope.run.pipeline._problem", lambda plan, loaded: "")
    load_model(Source(REPO, REVISIONS[1]))
    run(hub_study(tmp_path, "keep_weights: false\n"), tmp_path / "out")
    kept = [hub.cached(REPO, name) for name in REVISIONS[:3]]
    assert [listing is not None and "model.safetensors" in listing.files for listing in kept] == [
        False,
        True,
        False,
    ]
    assert len(list((tmp_path / "out" / "units").glob("*/*/moments.safetensors"))) == 6
    assert capsys.readouterr().err.count("deleted from the hub cache") == 2


@pytest.mark.parametrize("where", [{"engine": "ray"}, {"shard": "1/2"}])
def test_those_who_share_a_cache_are_not_to_empty_it(tmp_path, where):
    with pytest.raises(EngineError, match="keep_weights: false"):
        run(hub_study(tmp_path, "keep_weights: false\n"), tmp_path / "out", **where)
