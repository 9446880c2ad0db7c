"""The dataset of a study, its files, and numbers over heads."""

from qkscope.results.results_folder import Results, as_results, concat, load_results

__all__ = ["Results", "as_results", "concat", "load_results"]
