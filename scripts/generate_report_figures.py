"""Draw the published figures of SmolLM3-3B's training from a qk.csv. A thin layer over `qkscope.figures`.

    python scripts/generate_report_figures.py [qk.csv or results folder] [--out DIR]

Each function draws one figure and returns it as a matplotlib Figure. As a script, it writes all figures that the table
has data for to `figures/` next to it, each with its data and a README.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qkscope.errors import QkscopeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QK_CSV = Path("results/smollm3_training_progress/qk.csv")


def _draw(name: str, path: Path | str) -> Figure:
    from qkscope.figures import draw

    return draw(name, path).figure


def smollm_fig01_position_signal_over_training(path: Path | str = QK_CSV) -> Figure:
    """Mean r_q and r_k on PC0 over the checkpoints."""
    return _draw("position_signal", path)


def smollm_fig03_taxonomy_evolution(path: Path | str = QK_CSV) -> Figure:
    """The five classes of heads over the checkpoints."""
    return _draw("taxonomy_evolution", path)


def smollm_fig04_explained_variance_evolution(path: Path | str = QK_CSV) -> Figure:
    """Explained variance of PC0 over the checkpoints."""
    return _draw("explained_variance", path)


def smollm_fig05_layer_heatmap_rq(path: Path | str = QK_CSV) -> Figure:
    """Mean r_q by checkpoint and depth."""
    return _draw("layer_heatmap_rq", path)


def smollm_fig06_layer_heatmap_rk(path: Path | str = QK_CSV) -> Figure:
    """Mean r_k by checkpoint and depth."""
    return _draw("layer_heatmap_rk", path)


def smollm_fig07_rq_rk_scatter_grid(path: Path | str = QK_CSV) -> Figure:
    """r_q against r_k, a point per head, at representative checkpoints."""
    return _draw("phase_portraits", path)


@click.command()
@click.argument("table", default=QK_CSV, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where the figures go.  [default: figures/ beside TABLE]"
)
def main(table: Path, out: Path | None) -> None:
    """Draw all figures of TABLE, a qk.csv or a results folder."""
    from qkscope.figures import draw_all

    try:
        click.echo(draw_all(table, out=out))
    except QkscopeError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
