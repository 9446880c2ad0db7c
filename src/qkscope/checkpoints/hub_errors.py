"""Errors of the hub's client, classified and turned into messages."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, Literal

from qkscope.errors import HubError, UnreachableError

Kind = Literal["model", "dataset", "space"]

OFFLINE_ADVICE = (
    "To work offline, give a local folder as the model, or set HF_HUB_OFFLINE=1 to use what is already in the "
    "hub cache"
)


class WaitTooLongError(Exception):
    """The hub asks to wait longer than `LONGEST_WAIT`."""

    def __init__(self, seconds: float, status: int) -> None:
        reason = "its rate limit" if status == 429 else f"HTTP {status}"
        super().__init__(f"the hub asks to wait {seconds:.0f} s ({reason})")


def explain(
    error: BaseException, repo: str, revision: str | None, kind: Kind, nearest: Callable[[], str]
) -> HubError:
    """What went wrong and what to do, in a sentence or two, for any error of the hub's client.

    `nearest` tells which revisions there are, where one is not.
    """
    from huggingface_hub import constants, errors

    name = full_name(repo, revision, kind)
    status = status_of(error)
    page = repo if kind == "model" else f"{kind}s/{repo}"
    for cause in chain(error):
        if isinstance(cause, errors.GatedRepoError):
            return HubError(
                f"{name} is gated: accept its terms on {constants.ENDPOINT}/{page}, then log in with "
                "`hf auth login` or set HF_TOKEN"
            )
        if isinstance(cause, errors.RevisionNotFoundError):
            return HubError(f"{name}: no such revision{nearest()}")
        if isinstance(cause, errors.HFValidationError):
            what = "is neither a folder on this machine nor a name on the hub (owner/name)"
            return HubError(f"{repo!r} {what}")
        if isinstance(cause, errors.RepositoryNotFoundError) or status in (401, 403):
            folder = "no local folder of that name and " if kind == "model" else ""
            return HubError(
                f"{name}: {folder}no such {kind} on the hub, or a private one: check the name, and for a private "
                f"{kind} log in with `hf auth login` or set HF_TOKEN to a token with read access"
            )
        if isinstance(cause, errors.EntryNotFoundError) and status == 404:
            return HubError(f"{name}: incomplete, a file it lists is missing on the hub ({line(cause)})")
    return _explain_outage(error, name, status)


def _explain_outage(error: BaseException, name: str, status: int | None) -> HubError:
    """Errors that are not the user's mistake: limits, outages, the network, the disk."""
    from huggingface_hub import constants

    again = "run again later: downloaded files are kept"
    for cause in chain(error):
        if isinstance(cause, WaitTooLongError):
            return HubError(f"{name}: {cause}; {again}")
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            what = f"the disk is full ({constants.HF_HUB_CACHE}); free some space or set HF_HOME"
            return HubError(f"{name}: {what}")
    if status == 429:
        what = f"the hub still limits the request rate (429) after several attempts; {again}"
    elif status == 412:
        what = "was changed by someone else in the meantime; check it, and run again to overwrite it"
    elif status is not None and status >= 500:
        what = f"the hub still returns HTTP {status} after several attempts; {again}"
    elif is_network(error):
        return UnreachableError(
            f"{name}: {constants.ENDPOINT} cannot be reached or the connection broke "
            f"({line(chain(error)[-1])}). Check the network, or {again}. {OFFLINE_ADVICE}"
        )
    else:
        what = f"unexpected response from the hub ({line(error)})"
    return HubError(f"{name}: {what}")


def status_of(error: BaseException) -> int | None:
    response = response_of(error)
    return None if response is None else int(response.status_code)


def response_of(error: BaseException) -> Any:
    """The hub's answer that an error, or one that caused it, carries."""
    responses = (getattr(cause, "response", None) for cause in chain(error))
    return next((r for r in responses if hasattr(r, "status_code")), None)


def chain(error: BaseException) -> list[BaseException]:
    """The error and those that caused it."""
    causes: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in causes:
        causes.append(current)
        current = current.__cause__ or current.__context__
    return causes


def is_network(error: BaseException) -> bool:
    # RuntimeError: how transfers of the hub's Xet storage report a connection that broke.
    clients = {"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"}
    return any(
        isinstance(cause, ConnectionError | TimeoutError | RuntimeError)
        or type(cause).__module__.split(".")[0] in clients
        for cause in chain(error)
    )


def may_pass(error: BaseException) -> bool:
    """Whether another attempt may succeed: the network, a rate limit, or the hub's own failure."""
    status = status_of(error)
    return is_network(error) if status is None else status == 429 or status >= 500


def full_name(repo: str, revision: str | None, kind: Kind) -> str:
    return f"{'' if kind == 'model' else f'{kind} '}{repo}{f'@{revision}' if revision else ''}"


def line(error: BaseException) -> str:
    """The first line of an error's words, or its kind when it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__
