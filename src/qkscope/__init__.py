"""qkscope: how a language model's attention heads come to encode position while it trains.

    import qkscope

    result = qkscope.scan(model, tokenizer=tokenizer, texts=texts)   # one model; .heads is a DataFrame
    results = qkscope.run_study("study.yaml")                        # a whole training run
    results = qkscope.load_results("results/nano")                   # load an earlier run
    results.head(4, 2)                                               # one head over training, with errors
    qkscope.figure("position_signal", results, width=3.3)            # one figure, one paper column wide
    qkscope.ablate("results/nano", heads=["class:positional"])       # what the model loses without a part of them
    qk = qkscope.analyze("vectors/")                                 # measure stored vectors
    monitor = qkscope.Monitor(model, texts, tokenizer)               # measure a model while it trains

Modules are imported on first use: `import qkscope` is fast, and only functions that read models need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkscope.claims import Claim
    from qkscope.claims import claims as claims_of
    from qkscope.comparison import Comparison, compare
    from qkscope.errors import QkscopeError
    from qkscope.figures import draw as figure
    from qkscope.figures import draw_all
    from qkscope.measures import Axes, measure
    from qkscope.monitor import Monitor
    from qkscope.report import write_report
    from qkscope.results import Results, concat, load_results
    from qkscope.results.tables import read_qk
    from qkscope.results.taxonomy import Thresholds, classify, polarity, transitions
    from qkscope.run import run as run_study
    from qkscope.scanning.ablate import ablate
    from qkscope.scanning.analyze import analyze
    from qkscope.scanning.scan import scan
    from qkscope.scanning.whatif import whatif
    from qkscope.study import Study, load_study
    from qkscope.sums.head_index import HeadIndex
    from qkscope.sums.moments import Accumulator, Moments
    from qkscope.sums.unit import Unit

# Where each public name is defined: "module", or "module:name" if it has another name there.
_HOME = {
    "Accumulator": "sums.moments",
    "Axes": "measures",
    "Claim": "claims",
    "Comparison": "comparison",
    "HeadIndex": "sums.head_index",
    "Moments": "sums.moments",
    "Monitor": "monitor",
    "QkscopeError": "errors",
    "Results": "results",
    "Study": "study",
    "Thresholds": "results.taxonomy",
    "Unit": "sums.unit",
    "ablate": "scanning.ablate",
    "analyze": "scanning.analyze",
    "claims_of": "claims:claims",
    "classify": "results.taxonomy",
    "compare": "comparison",
    "concat": "results",
    "draw_all": "figures",
    "figure": "figures:draw",
    "load_results": "results",
    "load_study": "study",
    "measure": "measures",
    "polarity": "results.taxonomy",
    "read_qk": "results.tables",
    "run_study": "run:run",
    "scan": "scanning.scan",
    "transitions": "results.taxonomy",
    "whatif": "scanning.whatif",
    "write_report": "report",
}
__version__ = "0.2.0"
__all__ = [
    "Accumulator", "Axes", "Claim", "Comparison", "HeadIndex", "Moments", "Monitor", "QkscopeError",
    "Results", "Study", "Thresholds", "Unit", "ablate", "analyze", "claims_of", "classify", "compare",
    "concat", "draw_all", "figure", "load_results", "load_study", "measure", "polarity", "read_qk",
    "run_study", "scan", "transitions", "whatif", "write_report"
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'qkscope' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, _, attribute = _HOME[name].partition(":")
    value = getattr(import_module(f"qkscope.{module}"), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
