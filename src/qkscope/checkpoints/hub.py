"""Hub client with retries: list, look up and fetch files of models and datasets, and send files to a dataset.

Everything is read through the hub's own client into its own cache, with what a long unattended run needs besides:
an error within seconds if the hub cannot be reached, limited waits, retries where they help, the cached copy
if there is one, and clear messages.
"""

from __future__ import annotations

import difflib
import glob
import importlib
import logging
import os
import re
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from qkscope.checkpoints.hub_errors import (
    Kind,
    WaitTooLongError,
    explain,
    full_name,
    line,
    may_pass,
    response_of,
    status_of,
)
from qkscope.checkpoints.revisions import parse_revision
from qkscope.errors import CheckpointError, HubError, UnreachableError
from qkscope.words import some

log = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_SECONDS = 5.0  # for a question of a few kilobytes; HF_HUB_ETAG_TIMEOUT overrides it
STALL_SECONDS = 30.0  # a transfer without data for this long has failed
LONGEST_WAIT = 300.0  # the hub's own rate-limit window; longer demands end the attempt
ATTEMPTS = 4
LARGE = (".safetensors", ".bin", ".gguf", ".parquet", ".jsonl", ".gz")


@dataclass(frozen=True)
class Listing:
    """The files of one repository at one commit, as the hub or (when `folder` is set) the cache has them.

    `sizes` in bytes and `digests` (of large files by content, of others by git) only have what the hub gave.
    """

    repo: str
    kind: Kind
    revision: str | None
    commit: str
    files: tuple[str, ...]
    folder: Path | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return full_name(self.repo, self.revision, self.kind)


def need(module: str) -> Any:
    """A module of the `capture` extra, imported late: it takes seconds, and much works without it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"reading models needs {error.name}, which is not installed: pip install 'qkscope[capture]'"
        ) from error


def list_files(
    repo: str, revision: str | None = None, kind: Kind = "model", *, sizes: bool = False
) -> Listing:
    """What the hub holds; what the cache holds if the hub cannot be reached or offline mode is set.

    Names that no repository can have, such as those that lead out of a folder, are refused: they become paths here.
    """
    api, cache = need("huggingface_hub").HfApi(), need("huggingface_hub.constants").HF_HUB_CACHE
    found = cached(repo, revision, kind)
    if found is not None and _offline():
        return found
    ask = partial(
        api.repo_info,
        repo,
        revision=revision,
        repo_type=kind,
        timeout=_answer_seconds(),
        files_metadata=sizes,
    )
    with _or_a_folder(repo, kind):
        if _offline():
            raise UnreachableError(
                f"{full_name(repo, revision, kind)} is not in the hub cache ({cache}) and HF_HUB_OFFLINE is set; unset "
                "it, or give a local folder instead"
            )
        try:
            info = _ask(ask, repo, revision, kind)
        except HubError as error:
            if found is None or error.__cause__ is None or not may_pass(error.__cause__):
                raise
            log.warning("%s\nUsing the cached copy, commit %s.", error, found.commit[:12])
            return found
    files = {each.rfilename: each for each in info.siblings or ()}
    if wrong := [name for name in files if not is_safe(name)]:
        raise HubError(
            f"{full_name(repo, revision, kind)}: lists a file {wrong[0][:200]!r}, which is not a valid path "
            "inside it; nothing was downloaded"
        )
    known = {name: each.size for name, each in files.items() if each.size is not None}
    # The sha256 of a file in large file storage, else the hash of its git blob.
    hashes = {name: each.lfs["sha256"] if each.lfs else each.blob_id for name, each in files.items()}
    digests = {name: str(digest) for name, digest in hashes.items() if digest}
    return Listing(repo, kind, revision, info.sha, tuple(files), sizes=known, digests=digests)


def is_safe(name: str) -> bool:
    """Whether a name in a listing can be used as a path below a folder."""
    parts = name.split("/")
    control = any(unicodedata.category(sign) in ("Cc", "Cs") for sign in name)
    return not (control or "\\" in name or any(part in ("", ".", "..") for part in parts))


def list_refs(repo: str, kind: Kind = "model", attempts: int = ATTEMPTS) -> list[str]:
    """Names of all branches and tags, as the hub lists them."""
    api = need("huggingface_hub").HfApi()
    with _or_a_folder(repo, kind):
        if _offline():
            raise UnreachableError(
                f"{full_name(repo, None, kind)}: its revisions cannot be listed while HF_HUB_OFFLINE is set"
            )
        refs = _ask(lambda: api.list_repo_refs(repo, repo_type=kind), repo, None, kind, attempts=attempts)
    return [ref.name for ref in (*refs.branches, *refs.tags)]


def _offline() -> bool:
    return bool(need("huggingface_hub.constants").HF_HUB_OFFLINE)


@contextmanager
def _or_a_folder(repo: str, kind: Kind) -> Iterator[None]:
    """If the hub does not have `a/b` but there is a folder a, report that there is no folder a/b, and near names.

    A name without a slash may have been meant as a folder, too.
    """
    try:
        yield
    except HubError as error:
        parent = Path(repo).parent
        if kind != "model" or not parent.is_dir():
            raise
        try:
            inside = sorted(path.name for path in parent.iterdir() if path.is_dir())
        except OSError:
            inside = []
        close = difflib.get_close_matches(Path(repo).name, inside, n=3)
        meant = f"did you mean {' or '.join(str(parent / name) for name in close)}?"
        if parent == Path():
            words = f"{error}. There is no local folder {repo} either" + (f"; {meant}" if close else "")
        else:
            hint = meant if close else f"{parent} contains {some(inside) or 'no folders'}."
            words = f"{repo}: no such local folder; {hint} It was not found on the hub either: {error}"
        raise type(error)(words) from error.__cause__


def fetch(listing: Listing, files: Sequence[str]) -> Path:
    """The folder that holds `files`, downloading those that are not there yet. Finished files stay on failure."""
    from huggingface_hub import snapshot_download

    if listing.folder is not None:
        if missing := [name for name in files if not (listing.folder / name).is_file()]:
            raise HubError(
                f"{listing.place}: the cached copy lacks {some(missing)} and the hub could not be reached; "
                "run again when the network is available"
            )
        return listing.folder

    download = partial(
        snapshot_download,
        listing.repo,
        repo_type=listing.kind,
        revision=listing.revision,
        allow_patterns=[glob.escape(name) for name in files],
        tqdm_class=_bar_class(shown=any(name.endswith(LARGE) for name in files)),
    )
    return Path(_ask(download, listing.repo, listing.revision, listing.kind, question=False))


def forget(repo: str, revision: str | None) -> int:
    """Delete one revision of a model from the hub's cache; how many bytes that freed."""
    listing = cached(repo, revision)
    if listing is None:
        return 0
    plan = need("huggingface_hub").scan_cache_dir().delete_revisions(listing.commit)
    freed = int(plan.expected_freed_size)
    plan.execute()
    return freed


def make_repository(repo: str, kind: Kind, *, private: bool = False) -> None:
    """Create a dataset or a static Space on the hub if it is not there."""
    api = need("huggingface_hub").HfApi()
    if _offline():
        raise HubError(f"{full_name(repo, None, kind)}: nothing can be uploaded while HF_HUB_OFFLINE is set")

    sdk = "static" if kind == "space" else None
    create = partial(api.create_repo, repo, repo_type=kind, private=private, exist_ok=True, space_sdk=sdk)
    _ask(create, repo, None, kind)


def upload(before: Listing, folder: Path, message: str, remove: Sequence[str] = ()) -> str:
    """Send all files of `folder` to a repository and delete `remove` there, in one commit; the commit's address.

    The commit is made on top of `before`: if somebody else changed the repository meanwhile, the hub refuses it.
    """
    hub = need("huggingface_hub")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())

    def commit() -> Any:
        # Made anew for each attempt: the client writes into them.
        added = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in names]
        gone = [hub.CommitOperationDelete(path_in_repo=name, is_folder=False) for name in remove]
        return hub.HfApi().create_commit(
            before.repo,
            [*added, *gone],
            repo_type=before.kind,
            commit_message=message,
            parent_commit=before.commit or None,
        )

    return str(_ask(commit, before.repo, None, before.kind, question=False).commit_url)


def _bar_class(shown: bool) -> Any:
    """The client's own progress bars, for large files on a terminal only."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # mypy does not follow the import
        def __init__(self, *args: Any, **settings: Any) -> None:
            settings["disable"] = settings.get("disable") or not (shown and sys.stderr.isatty())
            super().__init__(*args, **settings)

    return Bar


def _ask(
    call: Callable[[], T],
    repo: str,
    revision: str | None,
    kind: Kind,
    *,
    question: bool = True,
    attempts: int = ATTEMPTS,
) -> T:
    """Call the hub's client; retry after errors that may be temporary.

    A question must be answered within seconds; a transfer may take as long as bytes arrive.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            with _guarded_client():
                return _within(1.2 * _answer_seconds(), call) if question else call()
        except Exception as error:
            pause = None if attempt >= attempts else _pause(error, attempt)
            if pause is None:
                nearest = partial(_nearest, repo, revision, kind)
                raise explain(error, repo, revision, kind, nearest) from error
            log.warning("%s: %s; trying again in %.0f s", full_name(repo, revision, kind), line(error), pause)
            time.sleep(pause)


def _pause(error: Exception, attempt: int) -> float | None:
    """Seconds to wait before the next attempt; None when another would not help."""
    if not may_pass(error):
        return None
    if status_of(error) is not None:
        return _asked_wait(response_of(error)) or 2.0 ** (attempt - 1)
    # Once: a dead network is to be reported within seconds, and transfers were retried by the client already.
    return 1.0 if attempt == 1 else None


@contextmanager
def _guarded_client() -> Iterator[None]:
    """While the block runs, the hub's client has timeouts where it has none and refuses endless waits."""
    from huggingface_hub import get_session

    hooks = get_session().event_hooks
    hooks["request"].append(_fill_timeout)
    hooks["response"].append(_refuse_long_wait)
    try:
        yield
    finally:
        hooks["request"].remove(_fill_timeout)
        hooks["response"].remove(_refuse_long_wait)


def _fill_timeout(request: Any) -> None:
    limits = request.extensions.get("timeout", {})
    filled = {key: limits.get(key) or STALL_SECONDS for key in ("connect", "read", "write", "pool")}
    request.extensions = {**request.extensions, "timeout": filled}


def _refuse_long_wait(response: Any) -> None:
    if response.status_code >= 400 and (seconds := _asked_wait(response)) and seconds > LONGEST_WAIT:
        raise WaitTooLongError(seconds, response.status_code)


def _asked_wait(response: Any) -> float | None:
    """Seconds the hub asks to wait: `Retry-After`, or the rest of a used-up rate-limit window."""
    after = response.headers.get("retry-after", "").strip()
    if after.isdigit():
        return float(after)
    window = re.search(r"r\s*=\s*0\s*;\s*t\s*=\s*(\d+)", response.headers.get("ratelimit", ""))
    return float(window[1]) + 1 if window else None


def _within(seconds: float, call: Callable[[], T]) -> T:
    """The call's result, or TimeoutError: name resolution, for one, obeys no timeout of the client."""
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()  # an executor would wait for the thread at exit
    try:
        return outcome.result(seconds)
    except TimeoutError as error:
        if outcome.done():  # the call's own
            raise
        raise TimeoutError(f"no response within {seconds:.0f} s") from error


def cached(repo: str, revision: str | None, kind: Kind = "model") -> Listing | None:
    """What the hub's cache holds of this revision, if anything."""
    from huggingface_hub import constants

    root = Path(constants.HF_HUB_CACHE) / f"{kind}s--{repo.replace('/', '--')}"
    ref = root / "refs" / (revision or "main")
    commit = ref.read_text().strip() if ref.is_file() else revision
    if not commit or not (folder := root / "snapshots" / commit).is_dir():
        return None
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    # The cache keeps contents under their digests, and links to them.
    digests = {name: (folder / name).resolve().name for name in files if (folder / name).is_symlink()}
    return Listing(repo, kind, revision, commit, tuple(files), folder, digests=digests)


def _nearest(repo: str, revision: str | None, kind: Kind) -> str:
    """`; did you mean ...` for a revision that does not exist; empty if the hub cannot list those that do."""
    try:
        names = list_refs(repo, kind)
    except HubError:
        return ""
    wanted = parse_revision(revision or "")
    parsed = [p for p in map(parse_revision, names) if p]
    close = difflib.get_close_matches(revision or "", names, n=3)
    if wanted:
        same = [p for p in parsed if p.phase_key == wanted.phase_key]
        same.sort(key=lambda p: abs((p.step or 0) - (wanted.step or 0)))
        close = [p.name for p in same[:3]] or close
    hint = f"; did you mean {' or '.join(close)}?" if close else f"; it has {some(names)}." if names else "."
    return hint + (f" `qkscope ls {repo}` lists all {len(names)}" if kind == "model" else "")


def _answer_seconds() -> float:
    return float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or ANSWER_SECONDS)


PREFIX = "hub:"


def on_hub(address: Path | str) -> bool:
    """Whether an address is one on the hub, not a path."""
    return str(address).startswith(PREFIX)


def split_address(address: Path | str) -> tuple[str, str]:
    """`owner/name` and the folder in it, "" for all of it."""
    owner, _, rest = str(address).removeprefix(PREFIX).partition("/")
    name, _, folder = rest.partition("/")
    if not on_hub(address) or not owner or not name:
        raise HubError(f"{str(address)!r}: expected hub:owner/name")
    return f"{owner}/{name}", folder.rstrip("/")
