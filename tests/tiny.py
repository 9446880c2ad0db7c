"""The smallest checkpoints and tokenizers that the real classes write and read."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = ["the", "a", "of", "and", "cat", "dog", "sat", "mat", "ran", "on", "under", "quick", "brown", "fox"]


def tiny_model(seed: int = 0, **changes):
    """A Llama of two layers, four query heads, two key heads, 8 dimensions each."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    settings = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return LlamaForCausalLM(LlamaConfig(**(settings | changes)))


def tiny_tokenizer():
    """Whole words, an unknown token, and a <s> put first by default."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = {word: index for index, word in enumerate(["<unk>", "<s>", "</s>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def save_checkpoint(
    folder: Path, seed: int = 0, *, shard: str = "5GB", tokenizer: bool = False, **changes
) -> Path:
    """A checkpoint folder as `save_pretrained` writes it."""
    tiny_model(seed, **changes).save_pretrained(folder, max_shard_size=shard)
    if tokenizer:
        tiny_tokenizer().save_pretrained(folder)
    return folder


HANGING = """\
import ctypes
from transformers import LlamaForCausalLM

def hang(*_):
    ctypes.PyDLL(None).sleep(600)  # without giving other threads or signals their turn

class Hanging(LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.model.register_forward_pre_hook(hang)
"""


def make_hang(folder: Path) -> None:
    """Give a checkpoint code of its own, with which every pass hangs in a library."""
    (folder / "hanging.py").write_text(HANGING)
    edit_config(folder, auto_map={"AutoModelForCausalLM": "hanging.Hanging"})


def edit_config(folder: Path, **changes) -> None:
    """Change entries of a config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
