"""A small model of every causal family, with random weights, through its real classes."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

FAMILIES: dict[str, str] = dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCABULARY = 97
# More than this is not small: a size of the family's was missed.
MOST_PARAMETERS = 5_000_000

# What makes a model small, under every name that some family uses. A family gets those that its configuration knows.
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # the same in older and in encoder-decoder families
    "n_embd": 64,
    "d_model": 64,
    "embedding_size": 64,
    "word_embed_proj_dim": 64,
    "emb_dim": 64,
    "ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "n_layer": 4,
    "n_layers": 4,
    "num_layers": 4,
    "decoder_layers": 4,
    "encoder_layers": 1,
    "n_head": 4,
    "n_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "n_positions": 128,
    "max_seq_len": 128,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": 2,
    # mixtures of experts
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    "first_k_dense_replace": 1,
    # latent and sparse attention
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "kv_lora_rank": 24,
    "q_lora_rank": 24,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 8,
    # attention within a window
    "sliding_window": 8,
    # recurrent layers beside the attention
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_head_dim": 16,
    "linear_num_heads": 2,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "state_size": 8,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# Latent attention: one key head a query head, and head_dim is the rotated part's.
LATENT = {"num_key_value_heads": 4, "head_dim": 8}
LINEAR_THEN_FULL = ["linear_attention", "full_attention"] * 2
HYBRID = ["linear_attention", "hybrid"] * 2
SLIDING_THEN_FULL = ["sliding_attention", "full_attention"] * 2
INKLING = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "sliding_window_size": 8,
    "layer_types": ["hybrid_sliding", "hybrid"] * 2,
}
SMALL_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
    "mlp_dim": 32,
    "output_channels": 32,
    "global_attn_indexes": [0],
}
# Families that can be encoders too: as decoders they are causal.
DECODERS = (
    *(
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
    ),
    *(
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    ),
)
# What a family needs besides; None leaves a value of SMALL out.
SPECIAL: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_types": LINEAR_THEN_FULL},
    "bamba": {"attn_layer_indices": [1, 3]},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": PLAIN_ROPE, "sliding_attention": PLAIN_ROPE},
        "layer_types": SLIDING_THEN_FULL,
    },
    "codegen": {"rotary_dim": 8},
    "blt": {
        part: {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2}
        for part in ("patcher_config", "encoder_config", "decoder_config", "global_config")
    }
    | {"vocab_size": 260, "encoder_hash_byte_group_vocab": 50, "encoder_hash_byte_group_size": [3]},
    "cpmant": {"dim_head": 16, "dim_ff": 96, "prompt_types": 2, "prompt_length": 4, "segment_types": 2},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    },
    "deepseek_v4": {"num_key_value_heads": 1},
    "dots1": {"n_shared_experts": 1},
    "dots3_note": {
        "vision_config": SMALL_VISION
        | {"adapter_in_dim": 32, "adapter_out_dim": 64, "pyramid_num_routed": [-1]},
        "audio_config": {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "downsample_hidden_size": 8,
            "adapter_input_size": 32,
            "adapter_out_dim": 64,
            "conv_output_size": 128,
        },
    },
    "dots3_note_text": {
        "shared_experts_intermediate_size": 32,
        "per_layer_config": {2: {"head_dim": 24}, 3: {"head_dim": 24}},
    },
    "falcon": {"head_dim": None},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma2": {"attn_logit_softcapping": 5.0},
    "gemma3": {"vision_config": SMALL_VISION, "mm_tokens_per_image": 4},
    "gemma3_text": {"sliding_window_pattern": 2},
    "gemma3n_text": {
        "layer_types": SLIDING_THEN_FULL,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gemma4_text": {
        "layer_types": SLIDING_THEN_FULL,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "per_layer_config": {1: {"head_dim": 32}, 3: {"head_dim": 32}},
    },
    "gemma4_unified_text": {"layer_types": SLIDING_THEN_FULL},
    "git": {"vision_config": SMALL_VISION},
    "got_ocr2": {"vision_config": SMALL_VISION},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 8, "num_heads": 4},
    "gpt_oss": {"rope_parameters": PLAIN_ROPE},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": LINEAR_THEN_FULL},
    "inkling2_text": INKLING,
    "inkling_text": INKLING,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 8},
    "kimi_linear": {"layer_types": LINEAR_THEN_FULL},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"head_dim": 32, "num_heads": 4, "n_groups": 1},
    "minimax": {"sliding_window": None},
    "mistral": {"sliding_window": None},
    "modernbert-decoder": {"local_attention": 16},
    "moss_transcribe_diarize": {
        "audio_config": {
            "d_model": 32,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_layers": 1,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 32,
            "vocab_size": 97,
        }
    },
    "phi3": {"sliding_window": None},
    "phi4_multimodal": {
        "vision_config": SMALL_VISION | {"crop_size": 16},
        "audio_config": {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_blocks": 1,
            "num_attention_heads": 2,
            "nemo_conv_channels": 8,
            "ext_pw_out_channel": 32,
            "depthwise_separable_out_channel": 32,
        },
    },
    "prophetnet": {
        "num_hidden_layers": None,
        "num_encoder_layers": 1,
        "num_decoder_layers": 4,
        "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4,
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
        "hc_lowrank": 8,
        "ple_embed_dim": 8,
    },
    "reformer": {
        "is_decoder": True,
        "attention_head_size": 16,
        "attn_layers": ["local", "lsh"] * 2,
        "num_hidden_layers": None,
        "axial_pos_embds": False,
        "num_buckets": 2,
    },
    "roc_bert": {"pronunciation_embed_dim": 8, "shape_embed_dim": 8, "shape_vocab_size": 97},
    "xlm": {"causal": True},
    "xlnet": {"attn_type": "uni", "d_inner": 96, "d_head": 16, "max_position_embeddings": None},
    "xlstm": {"v_head_dim": None, "num_heads": 2, "qk_dim_factor": 1.0},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_key_value_heads": 4,
        "num_hidden_layers": 8,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "linear_attention"] * 2,
        "mamba_dt_rank": 8,
    },
    "zamba2": {"layer_types": HYBRID, "layers_block_type": HYBRID},
    "zaya": {"num_experts_per_tok": 1},
}
# The parts of a model with several: only the text part is measured.
TEXT_PART = {
    "dots3_note": "dots3_note_text",
    "emu3": "emu3_text_model",
    "fuyu": "persimmon",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_assistant": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "gemma4_unified_assistant": "gemma4_unified_text",
    "got_ocr2": "qwen2",
    "llama4": "llama4_text",
    "mllama": "mllama_text_model",
    "moss_transcribe_diarize": "qwen3",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen4_exp": "qwen4_exp_text",
}


def small_options(family: str) -> dict[str, Any]:
    """The configuration's values that make a model of the family small."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[family]
    names = set(kind.attribute_map) | set(dir(kind))
    options = {name: value for name, value in SMALL.items() if name in names}
    if "qk_rope_head_dim" in names:
        options |= LATENT
    if family in TEXT_PART:
        options["text_config"] = {"model_type": TEXT_PART[family]} | small_options(TEXT_PART[family])
    if family in DECODERS:
        options["is_decoder"] = True
    options |= SPECIAL.get(family, {})
    return {k: v for k, v in options.items() if v is not None or k == "sliding_window"}


def build(family: str, **changes: Any) -> Any:
    """A small model of the family with random weights, the same on every call."""
    config = AutoConfig.for_model(family, **(small_options(family) | changes))
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{family} has {size:,} parameters: more than {MOST_PARAMETERS:,}")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    # Attention sinks, norms and biases start as constants; random ones show whether they are respected.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
