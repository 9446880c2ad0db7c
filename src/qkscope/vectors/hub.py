"""Vectors that are kept in a dataset on the hub: which of its files they are, fetched into the hub's cache."""

from __future__ import annotations

from pathlib import Path

from qkscope.checkpoints import hub
from qkscope.checkpoints.address import split_address
from qkscope.errors import VectorsError
from qkscope.vectors.layout import is_vectors


def fetch_vectors(place: Path | str) -> tuple[Path, str]:
    """The folder with the vectors at `hub:owner/name[/folder]`, and what to call a model that lies in it bare.

    Only files of the layout are fetched.
    """
    repo, folder = split_address(place)
    listing = hub.list_files(repo, kind="dataset")
    below = f"{folder}/" if folder else ""
    names = [n for n in listing.files if n.startswith(below) and is_vectors(n.removeprefix(below))]
    if not names:
        raise VectorsError(
            f"{place}: none of its {len(listing.files)} files are vectors; expected <model>/l00h00q/data.parquet and "
            "so on; if they are in a subfolder, use hub:owner/name/folder"
        )
    return hub.fetch(listing, names) / folder, (folder or repo).rpartition("/")[2]
