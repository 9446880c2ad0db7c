"""Parquet files of query and key vectors <-> moments."""

from qkscope.vectors.files import position_columns, read_moments, write_vectors

__all__ = ["position_columns", "read_moments", "write_vectors"]
