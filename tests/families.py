"""The families that the tests look at closely; `survey` builds every other as well."""

from __future__ import annotations

from survey.build import build, tokens

__all__ = ["BY_INTERFACE", "BY_PRODUCTS", "FAMILIES", "SPARSE", "build", "tokens"]

# The layers of a small model of the family that attend to everything.
FAMILIES = {
    "llama": [0, 1, 2, 3],
    "smollm3": [0, 1, 2, 3],
    "gpt_neox": [0, 1, 2, 3],
    "olmo2": [0, 1, 2, 3],
    "olmo3": [3],
    "qwen2": [0, 1, 2, 3],
    "qwen3": [0, 1, 2, 3],
    "mistral": [0, 1, 2, 3],
    "gemma2": [1, 3],
    "gemma3_text": [1, 3],
    "phi3": [0, 1, 2, 3],
    "gpt_oss": [1, 3],
}
# Families that choose their keys themselves, and only if the attention's name is one they know.
SPARSE = ["deepseek_v32", "glm_moe_dsa", "axk2", "hy_v4"]
# A sample of what `make families` checks in full, chosen for what is special about them.
BY_INTERFACE = [
    "llama",
    "gpt_neox",
    "gemma4",
    "mimo_v2_flash",
    "diffllama",
    "jetmoe",
    "zamba2",
    "modernbert-decoder",
]
BY_INTERFACE += ["beam", "whisper", "longcat_flash", "inkling_text", "deepseek_v32", "bert"]
BY_PRODUCTS = ["falcon", "gptj", "bloom", "mpt", "codegen", "gpt_neo", "roformer", "xlm"]
