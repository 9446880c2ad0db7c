"""Parquet files of query and key vectors <-> moments."""

from qkscope.vectors.parquet import read_moments, write_vectors

__all__ = ["read_moments", "write_vectors"]
