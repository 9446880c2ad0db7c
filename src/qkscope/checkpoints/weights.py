"""Downloads the weights of the next checkpoint while the current one is measured, and deletes them afterwards.

The download runs in a subprocess, so that it does not slow the passes down. Its errors are ignored: loading the model
meets them again and reports them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

from qkscope.checkpoints import hub
from qkscope.checkpoints.files import WEIGHTS, Source, local_files
from qkscope.errors import QkscopeError, printable
from qkscope.progress import say


class WeightPrefetcher:
    """Downloads the weights of `sources` in the order in which they are measured, one ahead.

    With `keep` false, weights that were not in the hub cache before are deleted from it when their checkpoint is done.
    """

    def __init__(self, sources: Sequence[Source], keep: bool = True) -> None:
        # By model and revision: counterfactual checkpoints share the weights of others.
        self._sources = {str(source): source for source in sources if source.path is None}
        self._keep = keep
        self._there = {name for name, source in self._sources.items() if _in_cache(source)}
        self._begun: dict[str, subprocess.Popen[bytes]] = {}

    def wait_for(self, source: Source) -> None:
        """Wait until the download of these weights has ended, if one was started."""
        if str(source) in self._begun:
            self._begun[str(source)].wait()

    def fetch_after(self, source: Source) -> None:
        """Start to download the weights of the next source, unless that was done already."""
        names = list(self._sources)
        following = names[names.index(str(source)) + 1 :][:1] if str(source) in names else []
        for name in following:
            if name not in self._begun and not _in_cache(self._sources[name]):
                self._begun[name] = _fetching(self._sources[name])

    def done(self, source: Source) -> None:
        """Delete the weights of a source if `keep` is false and they were downloaded by this run."""
        if self._keep or str(source) not in self._sources or str(source) in self._there:
            return
        try:
            freed = hub.forget(source.model, source.revision)
        except (OSError, QkscopeError) as error:
            say(
                f"{source}: its weights could not be deleted ({printable(str(error))}) and remain in the hub cache"
            )
            return
        if freed:
            say(f"{source}: {freed / 1e9:.1f} GB of weights deleted from the hub cache (keep_weights: false)")

    def close(self) -> None:
        """Stop all downloads; the next run resumes them."""
        for process in self._begun.values():
            process.kill()
            process.wait()


def _in_cache(source: Source) -> bool:
    listing = hub.cached(source.model, source.revision)
    return listing is not None and any(name.endswith(WEIGHTS) for name in listing.files)


def _fetching(source: Source) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "qkscope.checkpoints.weights"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        start_new_session=True,
    )
    if process.stdin is not None:
        process.stdin.write(json.dumps(asdict(source)).encode())
        process.stdin.close()
    return process


if __name__ == "__main__":
    local_files(Source(**json.load(sys.stdin)), "model")
