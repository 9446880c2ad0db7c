"""Models from folders and GGUF files, and a clear word for each that cannot be read."""

import json
import logging
import pickle

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from qkscope import checkpoints
from qkscope.checkpoints import (
    Source,
    checkpoints_yaml,
    digest,
    discover,
    hub,
    list_revisions,
    load_config,
    load_model,
    load_resolved,
    load_tokenizer,
    resolve,
)
from qkscope.errors import CheckpointError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A complete checkpoint with its tokenizer; not to be changed."""
    return tiny.save_checkpoint(tmp_path_factory.mktemp("model") / "checkpoint-10", tokenizer=True)


@pytest.fixture
def scratch(tmp_path):
    """A checkpoint without tokenizer to damage."""
    return tiny.save_checkpoint(tmp_path / "scratch")


def test_a_folder_gives_the_model_that_was_saved(folder):
    model = load_model(Source(str(folder)))
    expected = tiny.tiny_model(0).state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert load_config(Source(str(folder))).num_hidden_layers == 2


def test_dtype_and_device_map_pass_through(folder):
    assert load_model(Source(str(folder))).dtype == torch.float32
    assert load_model(Source(str(folder), dtype="bfloat16", device="cpu")).dtype == torch.bfloat16
    device_map = {"model": "cpu", "lm_head": "meta"}
    assert load_model(Source(str(folder), device_map=device_map)).hf_device_map == device_map


def test_loading_says_nothing_and_leaves_the_talk_of_transformers_as_it_was(folder, capfd):
    from transformers.utils import logging as talk

    before = talk.get_verbosity(), talk.is_progress_bar_enabled()
    load_model(Source(str(folder)))
    assert (talk.get_verbosity(), talk.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")


def test_the_tokenizer_beside_the_model_or_elsewhere(folder, scratch):
    expected = [1, 3, 7, 9]
    assert load_tokenizer(Source(str(folder)))("the cat sat")["input_ids"] == expected
    assert load_tokenizer(Source(str(scratch), tokenizer=str(folder)))("the cat sat")["input_ids"] == expected


def test_a_checkpoint_without_tokenizer_says_to_give_one(scratch):
    with pytest.raises(CheckpointError, match=r"no tokenizer.*`tokenizer: FOLDER` in the study"):
        load_tokenizer(Source(str(scratch)))


def test_shards_load_and_a_missing_one_is_named(tmp_path):
    folder = tiny.save_checkpoint(tmp_path / "sharded", shard="20KB")
    whole = load_model(Source(str(folder))).state_dict()
    assert torch.equal(whole["model.norm.weight"], tiny.tiny_model(0).state_dict()["model.norm.weight"])
    gone = sorted(folder.glob("model-00002-of-*"))[0]
    gone.unlink()
    with pytest.raises(CheckpointError, match=rf"incomplete.*{gone.name}.*missing"):
        load_model(Source(str(folder)))
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"index\.json is damaged"):
        load_model(Source(str(folder)))


def test_the_digest_follows_configuration_and_weights_alone(scratch):
    first = resolve(Source(str(scratch)))
    assert first.commit.startswith("sha256:")
    assert first.source.path == scratch
    (scratch / "notes.txt").write_text("anything")
    assert resolve(Source(str(scratch))).commit == first.commit
    weights = scratch / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    flipped = resolve(Source(str(scratch))).commit
    tiny.edit_config(scratch, rope_theta=5e6)
    assert len({first.commit, flipped, resolve(Source(str(scratch))).commit}) == 3


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_the_digest_follows_whatever_files_the_index_names(tmp_path, kind):
    source = Source(str(tiny.save_checkpoint(tmp_path, shard="20KB")), allow_pickle=kind == "bin")
    index = tmp_path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.unlink()
    names = {name: name.replace("model-", "weights-") for name in set(weight_map.values())}
    for name, other in names.items():
        (tmp_path / name).rename(tmp_path / other)
    weight_map = {key: names[name] for key, name in weight_map.items()}
    prefix = "model.safetensors" if kind == "safetensors" else "pytorch_model.bin"
    (tmp_path / f"{prefix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    before = resolve(source)
    shard = tmp_path / sorted(names.values())[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert resolve(source).commit != before.commit
    with pytest.raises(CheckpointError, match="replaced"):
        load_resolved(before)


def test_the_digest_follows_code_that_is_trusted(scratch, tmp_path):
    write_code(scratch, tmp_path / "executed")
    plain, trusted = Source(str(scratch)), Source(str(scratch), trust_remote_code=True)
    before = resolve(plain).commit, resolve(trusted).commit
    (scratch / "own.py").write_text((scratch / "own.py").read_text() + "# changed\n")
    assert resolve(plain).commit == before[0]
    assert resolve(trusted).commit != before[1]


def test_pickled_weights_are_refused_and_read_only_when_allowed(scratch, caplog):
    (scratch / "model.safetensors").unlink()
    torch.save(tiny.tiny_model(0).state_dict(), scratch / "pytorch_model.bin")
    with pytest.raises(
        CheckpointError, match=r"pickled \(pytorch_model\.bin\).*`allow_pickle: true` in the study"
    ):
        load_model(Source(str(scratch)))
    with caplog.at_level(logging.WARNING):
        model = load_model(Source(str(scratch), allow_pickle=True))
    assert torch.equal(
        model.state_dict()["model.norm.weight"], tiny.tiny_model(0).state_dict()["model.norm.weight"]
    )
    assert "allow_pickle" in caplog.text


def test_a_pickle_with_code_in_it_is_never_run_without_the_flag(scratch, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'exploded')!r}, 'w')",))

    (scratch / "model.safetensors").unlink()
    (scratch / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError):
        load_model(Source(str(scratch)))
    assert not (tmp_path / "exploded").exists()


def write_code(folder, sentinel):
    """A checkpoint whose configuration and model are classes that come with it."""
    (folder / "own.py").write_text(
        f"open({str(sentinel)!r}, 'w').close()\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    names = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    tiny.edit_config(folder, model_type="own", auto_map=names)


def test_remote_code_runs_only_when_trusted(scratch, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    write_code(scratch, sentinel := tmp_path / "executed")
    with pytest.raises(CheckpointError, match=r"`trust_remote_code: true`"):
        load_model(Source(str(scratch)))
    assert not sentinel.exists()
    with caplog.at_level(logging.WARNING):
        assert load_config(Source(str(scratch), trust_remote_code=True)).model_type == "own"
    assert sentinel.exists()
    assert "trust_remote_code" in caplog.text


@pytest.mark.parametrize("keep", [8, 500, -300])
def test_truncated_weights(scratch, keep):
    weights = scratch / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .*weights file"):
        load_model(Source(str(scratch)))


def test_weights_that_do_not_belong_to_the_configuration(scratch):
    tiny.edit_config(scratch, num_hidden_layers=3)
    with pytest.raises(CheckpointError, match=r"9 of the model's tensors .*layers\.2"):
        load_model(Source(str(scratch)))
    tiny.edit_config(scratch, num_hidden_layers=2, intermediate_size=64)
    with pytest.raises(CheckpointError, match=r"shape.*mlp"):
        load_model(Source(str(scratch)))


def test_weights_of_more_layers_than_the_configuration_describes(tmp_path):
    tiny.save_checkpoint(tmp_path, num_hidden_layers=12)
    tiny.edit_config(tmp_path, num_hidden_layers=5)
    with pytest.raises(CheckpointError, match=r"12 layers.*config\.json.*5"):
        load_model(Source(str(tmp_path)))


def test_weights_with_biases_that_the_configuration_does_not_describe(tmp_path):
    tiny.save_checkpoint(tmp_path, attention_bias=True)
    tiny.edit_config(tmp_path, attention_bias=False)
    with pytest.raises(CheckpointError, match=r"8 tensors.*k_proj\.bias.*config\.json"):
        load_model(Source(str(tmp_path)))


def test_tensors_that_no_model_reads_do_not_matter(scratch):
    """Old rotation tables and masks, scales of a quantised cache, other heads and towers, layers for further tokens."""
    weights = load_file(scratch / "model.safetensors")
    layers = [name for name in weights if name.startswith("model.layers.1.")]
    weights |= {name.replace("layers.1.", "layers.2."): weights[name].clone() for name in layers}
    for name in (
        "self_attn.rotary_emb.inv_freq",
        "self_attn.bias",
        "self_attn.masked_bias",
        "self_attn.k_scale",
    ):
        weights[f"model.layers.0.{name}"] = torch.ones(4)
    weights |= {"score.weight": torch.ones(2, 32), "vision_tower.layers.0.mlp.weight": torch.ones(2, 2)}
    save_file(weights, scratch / "model.safetensors", metadata={"format": "pt"})
    tiny.edit_config(scratch, num_nextn_predict_layers=1)
    assert len(load_model(Source(str(scratch))).model.layers) == 2


def test_a_whole_model_beside_an_adapter_is_refused(scratch):
    """With PEFT installed it would be measured with the adapter, else without."""
    (scratch / "adapter_config.json").write_text("{}")
    for read in (load_config, load_model):
        with pytest.raises(CheckpointError, match=r"adapter_config\.json.*merge_and_unload"):
            read(Source(str(scratch)))


def test_a_missing_output_head_does_not_matter(tmp_path):
    from transformers import LlamaModel

    folder = tmp_path / "backbone"
    tiny.tiny_model(0).model.save_pretrained(folder)
    assert LlamaModel.from_pretrained(folder).config.hidden_size == 32
    model = load_model(Source(str(folder)))
    assert torch.equal(model.model.norm.weight, tiny.tiny_model(0).model.norm.weight)


def test_an_unknown_model_type(scratch):
    tiny.edit_config(scratch, model_type="zorglub")
    with pytest.raises(CheckpointError, match=r"'zorglub' .* transformers \d"):
        load_config(Source(str(scratch)))


def test_a_configuration_that_is_no_json(scratch):
    (scratch / "config.json").write_text("{nope")
    with pytest.raises(CheckpointError, match=r"configuration cannot be read.*not a valid JSON"):
        load_config(Source(str(scratch)))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], r"config\.json.*found nothing"),
        (["notes.txt"], r"config\.json.*found notes\.txt"),
        (["adapter_config.json"], "an adapter without its model"),
        (["a.gguf", "b.gguf"], r"GGUF files: a\.gguf, b\.gguf"),
    ],
)
def test_folders_that_are_no_checkpoint(tmp_path, files, words):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=words):
        load_model(Source(str(tmp_path)))


def test_no_weights(scratch):
    (scratch / "model.safetensors").rename(scratch / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"no weights.*incomplete set of shards"):
        load_model(Source(str(scratch)))
    assert load_config(Source(str(scratch))).hidden_size == 32


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dtype": "fp16"}, r"dtype 'fp16'.*auto, float32.*did you mean float16"),
        ({"device": "cuda:7"}, r"device 'cuda:7' is not available.*available: cpu"),
        ({"device": "gpu"}, r"device 'gpu' is not available"),
    ],
)
def test_wrong_settings(folder, settings, words):
    with pytest.raises(CheckpointError, match=words):
        load_model(Source(str(folder), **settings))


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "~/missing", "model.gguf", "a/b/c"])
def test_paths_that_are_not_there(name):
    for read in (load_model, load_config, load_tokenizer, resolve):
        with pytest.raises(CheckpointError, match="no such file or folder"):
            read(Source(name))
    with pytest.raises(CheckpointError, match="no such file or folder"):
        list_revisions(name)


def test_a_revision_of_a_folder_is_the_folder_of_that_name_in_it(folder):
    parent = str(folder.parent)
    assert resolve(Source(parent, "checkpoint-10")).commit == resolve(Source(str(folder))).commit
    assert load_config(Source(parent, "checkpoint-10")).num_hidden_layers == 2
    with pytest.raises(CheckpointError, match=r"'checkpoint-11'.*did you mean checkpoint-10\?"):
        load_model(Source(parent, "checkpoint-11"))
    with pytest.raises(CheckpointError, match="no 'main'"):
        resolve(Source(str(folder), "main"))


def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "iterdir", refuse)
    for read in (load_model, resolve, lambda source: discover(source.model)):
        with pytest.raises(CheckpointError, match=r"cannot be read \(Permission denied\)"):
            read(Source(str(tmp_path)))


def test_a_file_that_is_no_model(tmp_path):
    path = tmp_path / "model.txt"
    path.write_text("hello")
    with pytest.raises(CheckpointError, match=r"not a model; expected a folder, a \.gguf file"):
        load_model(Source(str(path)))


def test_a_missing_package_names_the_extra():
    with pytest.raises(CheckpointError, match=r"needs no_such_package.*pip install 'qkscope\[capture\]'"):
        hub.need("no_such_package")


def test_discover_orders_by_step_and_leaves_out_what_is_none(tmp_path):
    for name in ("checkpoint-100", "checkpoint-20", "checkpoint-3", "tmp-checkpoint-200", "best"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "runs").mkdir()
    (tmp_path / "checkpoint-7").mkdir()  # a log folder: neither configuration nor weights
    (tmp_path / "config.json").write_text("{}")  # Trainer saves the final model beside them
    assert [p.name for p in discover(tmp_path)] == ["checkpoint-3", "checkpoint-20", "checkpoint-100"]
    assert [r.label for r in list_revisions(str(tmp_path))] == ["3", "20", "100"]


def test_discover_reads_stages_and_names_without_steps(tmp_path):
    for name in ("lc-1k-to-2k-step-5", "stage1-step-90", "stage1-step-100", "stage2-step-10"):
        (tmp_path / "staged" / name).mkdir(parents=True)
        (tmp_path / "staged" / name / "config.json").write_text("{}")
    names = ["stage1-step-90", "stage1-step-100", "stage2-step-10", "lc-1k-to-2k-step-5"]
    assert [p.name for p in discover(tmp_path / "staged")] == names
    for name in ("run10", "run9", "final"):
        (tmp_path / "named" / name).mkdir(parents=True)
        (tmp_path / "named" / name / "config.json").write_text("{}")
    assert [p.name for p in discover(tmp_path / "named")] == ["final", "run9", "run10"]
    assert discover(tmp_path / "named" / "run9") == [tmp_path / "named" / "run9"]


def test_the_yaml_of_a_folder_is_a_study_but_for_its_corpus(tmp_path):
    from qkscope.study import load_study, sources

    for name in ("checkpoint-20", "checkpoint-3"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").write_text("{}")
    text = checkpoints_yaml(str(tmp_path / "runs"))
    (tmp_path / "study.yaml").write_text(f"name: mine\nwindows: [64]\n{text}\n")
    found = sources(load_study(tmp_path / "study.yaml"))
    assert [(c.name, c.step, c.label, c.phase) for c in found] == [
        ("checkpoint-3", 3, "3", "Training"),
        ("checkpoint-20", 20, "20", "Training"),
    ]
    (tmp_path / "named" / "best").mkdir(parents=True)
    (tmp_path / "named" / "best" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no revision is named like a checkpoint.*it has best"):
        checkpoints_yaml(str(tmp_path / "named"))


def test_discover_finds_nothing(tmp_path):
    (tmp_path / "logs").mkdir()
    with pytest.raises(CheckpointError, match=r"no checkpoints.*found logs"):
        discover(tmp_path)
    with pytest.raises(CheckpointError, match="no such folder"):
        discover(tmp_path / "missing")


def write_gguf(path):
    """The tiny Llama as llama.cpp stores it: rows of q and k permuted, float32."""
    from gguf import GGUFWriter

    model = tiny.tiny_model(0, vocab_size=259)
    writer = GGUFWriter(path, "llama")
    for setting, value in {
        "context_length": 128,
        "embedding_length": 32,
        "block_count": 2,
        "feed_forward_length": 48,
        "head_count": 4,
        "head_count_kv": 2,
        "rope_freq_base": 10000.0,
        "layer_norm_rms_eps": 1e-6,
        "vocab_size": 259,
        "rope_dimension_count": 8,
    }.items():
        getattr(writer, f"add_{setting}")(value)
    tokens = ["<unk>", "<s>", "</s>", *(chr(256 + i) if i < 33 or i > 126 else chr(i) for i in range(256))]
    tokens[-2:] = ["th", "the"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["t h", "th e"])
    writer.add_token_types([3, 3, 3] + [1] * 256)
    for which, index in (("bos", 1), ("eos", 2), ("unk", 0)):
        getattr(writer, f"add_{which}_token_id")(index)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    plain = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, tensor in model.state_dict().items():
        stem, array = name.removesuffix(".weight"), tensor.numpy()
        if stem.startswith("model.layers."):
            _, _, layer, rest = stem.split(".", 3)
            heads = {"self_attn.q_proj": 4, "self_attn.k_proj": 2}.get(rest)
            if heads:
                array = array.reshape(heads, 2, 4, 32).swapaxes(1, 2).reshape(array.shape)
            writer.add_tensor(f"blk.{layer}.{names[rest]}.weight", np.ascontiguousarray(array))
        else:
            writer.add_tensor(f"{plain[stem]}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def test_a_gguf_file_gives_the_same_model_and_its_tokenizer(tmp_path):
    expected = write_gguf(path := tmp_path / "tiny.gguf")
    source = Source(str(path), dtype="float32")
    model = load_model(source)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert load_config(source).num_key_value_heads == 2
    assert load_tokenizer(source)("the")["input_ids"] == [258]
    assert resolve(source).commit == digest(path)
    assert resolve(Source(str(tmp_path), gguf_file="tiny.gguf")).commit == digest(path)
    assert load_config(Source(str(tmp_path), gguf_file="tiny.gguf")).num_hidden_layers == 2


def test_a_gguf_file_that_is_damaged_or_missing(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(CheckpointError, match=r"bad\.gguf: the configuration cannot be read"):
        load_model(Source(str(tmp_path / "bad.gguf")))
    with pytest.raises(CheckpointError, match=r"good\.gguf.*GGUF files found: bad\.gguf"):
        load_model(Source(str(tmp_path), gguf_file="good.gguf"))


def test_every_error_carries_one_line_only(scratch):
    (scratch / "config.json").write_text(json.dumps({"model_type": "zorglub"}))
    with pytest.raises(CheckpointError) as caught:
        load_config(Source(str(scratch)))
    assert "\n" not in str(caught.value)
    assert checkpoints.Source("a/b", "step1").__str__() == "a/b@step1"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": 0}, "number in config.json"),
        ({"hidden_size": "wide"}, "wrong type|hidden_size"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "missing|rope"),
    ],
)
def test_nonsense_in_a_configuration_is_told_in_words(tmp_path, changes, said):
    folder = tiny.save_checkpoint(tmp_path / "a")
    tiny.edit_config(folder, **changes)
    with pytest.raises(CheckpointError, match=said) as raised:
        load_model(Source(str(folder)))
    assert "Error" not in str(raised.value).replace("CheckpointError", "")
