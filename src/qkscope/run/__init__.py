"""The pipeline: a study file in, a results folder out."""

from qkscope.run.pipeline import run
from qkscope.run.status import status

__all__ = ["run", "status"]
