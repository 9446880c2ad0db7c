"""Copy figures of the demo that the documentation shows into docs/figures/, smaller.

    qkscope demo
    python scripts/docs_pictures.py results/nano

docs/figures/coordinates.png comes from studies/coordinates.py, whatif.png from `qkscope whatif` as in docs/whatif.md,
report.png is a screenshot of the report.
"""

from __future__ import annotations

from pathlib import Path

import click
from PIL import Image

INTO = Path(__file__).resolve().parent.parent / "docs" / "figures"
FIGURES = {
    "position_signal": "01_position_signal",
    "phase_portraits": "07_phase_portraits",
    "scores": "08_score_variance",
    "wavelengths": "09_wavelengths",
    "distance": "10_distance_curve",
    "causes": "11_causes",
}
WIDTH = 1400  # pixels


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
def main(results: Path) -> None:
    """Copy the pictures of RESULTS/figures."""
    for name, figure in FIGURES.items():
        picture = Image.open(results / "figures" / figure / "figure.png").convert("RGB")
        height = round(picture.height * WIDTH / picture.width)
        picture = picture.resize((WIDTH, height), Image.Resampling.LANCZOS)
        # Rare colours, such as a legend's, stay: the usual median cut would mix them with others.
        picture = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        picture.save(INTO / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
