"""The study file: what to measure, on what, in which order."""

from qkscope.study.load import left_out_of, load_study, validate
from qkscope.study.schema import Checkpoint, CorpusSpec, Entry, Study, dump_study, folder_name, sources

__all__ = [
    "Checkpoint",
    "CorpusSpec",
    "Entry",
    "Study",
    "dump_study",
    "folder_name",
    "left_out_of",
    "load_study",
    "sources",
    "validate",
]
