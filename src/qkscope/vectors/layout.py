"""Which heads lie in a folder of vectors, and which key head each query head reads.

    <root>/<model>/l<LL>h<HH>{q,k}/data.parquet

A q folder's HH is a query head, a k folder's HH the key head before repetition. Looks at names only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qkscope.checkpoints import hub
from qkscope.checkpoints.address import split_address
from qkscope.errors import VectorsError
from qkscope.words import some

# l100h128q is head 128 of layer 100. More digits would be no head of any model, but hours of looking for ratios.
_FOLDER = re.compile(r"l([0-9]{1,5})h([0-9]{1,5})([qk])")
Head = tuple[int, int]


@dataclass(frozen=True)
class ModelFolder:
    """One model's vectors: the file of each query head and of each key head, by (layer, head)."""

    path: Path
    queries: dict[Head, Path]
    keys: dict[Head, Path]
    called: str = ""
    """The model's name where the folder's is not it."""

    @property
    def name(self) -> str:
        return self.called or self.path.resolve().name

    @classmethod
    def read(cls, path: Path) -> ModelFolder:
        files: dict[str, dict[Head, Path]] = {"q": {}, "k": {}}
        for folder in _listed(path):
            match = _FOLDER.fullmatch(folder.name)
            if match and folder.is_dir():
                head = (int(match[1]), int(match[2]))
                if head in files[match[3]]:
                    raise VectorsError(
                        f"{folder} and {files[match[3]][head].parent} are the same head; remove one of them"
                    )
                files[match[3]][head] = folder / "data.parquet"
        return cls(path, files["q"], files["k"])


def is_vectors(name: str) -> bool:
    """Whether a path below a root is a file of the layout: `<model>/l00h00q/data.parquet`, or without the model."""
    *above, folder, file = ["", *name.split("/")]
    return len(above) <= 2 and bool(_FOLDER.fullmatch(folder)) and file == "data.parquet"


def find_models(root: Path, called: str = "") -> list[ModelFolder]:
    """The models under `root`: its folders that hold heads, or `root` itself, a model `called` so."""
    if not root.is_dir():
        raise VectorsError(f"{root}: no such folder; expected {root}/<model>/l00h00q/data.parquet and so on")
    folders = [ModelFolder.read(path) for path in [root, *_listed(root)] if path.is_dir()]
    found = [folder for folder in folders if folder.queries or folder.keys]
    if not found:
        raise VectorsError(
            f"{root}: no vectors found; expected {root}/<model>/l00h00q/data.parquet and so on"
        )
    for folder in found:
        if not folder.queries:
            raise VectorsError(
                f"{folder.path}: has key heads but no query heads (l<LL>h<HH>q); both are needed"
            )
    return [replace(found[0], called=called)] if found[0].path == root else found


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise VectorsError(f"{folder}: cannot be read ({error.strerror})") from error


def infer_ratio(model: ModelFolder) -> int:
    """Query heads per key head, where only one number fits the folders that are there."""
    queries, keys = set(model.queries), set(model.keys)
    highest = max(head for _, head in queries)
    fitting = [r for r in range(1, highest + 2) if {(layer, head // r) for layer, head in queries} == keys]
    whole = _whole_ratio(queries, keys)
    if whole in fitting:
        return whole
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise VectorsError(
            f"{model.path}: the folders fit {_words(fitting)} query heads per key head; "
            "set the right one with --gqa-ratio (the model's number of query heads over its number of key heads)"
        )
    raise VectorsError(f"{model.path}: {_no_ratio(queries, keys)}")


def require_keys(model: ModelFolder, ratio: int) -> None:
    """Raise for the first query head whose key head is not there."""
    lost = sorted((layer, head) for layer, head in model.queries if (layer, head // ratio) not in model.keys)
    if lost:
        layer, head = lost[0]
        more = f" (and {len(lost) - 1} more query heads lack theirs)" if len(lost) > 1 else ""
        raise VectorsError(
            f"{model.path}: query head l{layer:02d}h{head:02d}q needs key head l{layer:02d}h{head // ratio:02d}k at "
            f"{ratio} query heads per key head, but that folder is missing{more}; add it, or remove the query head"
        )


def _whole_ratio(queries: set[Head], keys: set[Head]) -> int | None:
    """The ratio of a complete set: the same heads 0..n-1 in every layer, n_q a multiple of n_k."""
    sizes = []
    for heads in (queries, keys):
        layers = {layer for layer, _ in heads}
        count = max((head for _, head in heads), default=-1) + 1
        if heads != {(layer, head) for layer in layers for head in range(count)}:
            return None
        sizes.append(count)
    return sizes[0] // sizes[1] if sizes[1] and sizes[0] % sizes[1] == 0 else None


def _no_ratio(queries: set[Head], keys: set[Head]) -> str:
    """Why no ratio fits: what the best one lacks or leaves over."""
    if not keys:
        return "there are query heads but no key heads (l<LL>h<HH>k); both are needed"

    def wrong(ratio: int) -> tuple[int, set[Head], set[Head]]:
        needed = {(layer, head // ratio) for layer, head in queries}
        return len(needed ^ keys), needed - keys, keys - needed

    ratio = min(range(1, max(head for _, head in queries) + 2), key=lambda r: wrong(r)[0])
    _, lost, spare = wrong(ratio)
    found = [f"{_names(lost, 'k')} missing"] if lost else []
    found += [f"{_names(spare, 'k')} not used by any query head"] if spare else []
    return (
        f"no number of query heads per key head fits the folders; {ratio} is closest, with "
        f"{' and '.join(found)}; add what is missing, or set the ratio with --gqa-ratio"
    )


def _names(heads: set[Head], kind: str) -> str:
    return some([f"l{layer:02d}h{head:02d}{kind}" for layer, head in sorted(heads)], 5)


def _words(numbers: Sequence[int]) -> str:
    return f"{', '.join(str(n) for n in numbers[:-1])} and {numbers[-1]}"


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
