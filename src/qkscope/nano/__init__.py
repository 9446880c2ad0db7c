"""The embedded default: a small SmolLM3 that is trained here and measured like any other model."""

from qkscope.nano.training import DemoResult, demo, train, write_study

__all__ = ["DemoResult", "demo", "train", "write_study"]
