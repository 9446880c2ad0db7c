"""What a study costs before it is begun: its units, and the tokens that pass through its models; what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qkscope.capture.rotation import check_windows
from qkscope.errors import CaptureError, QkscopeError
from qkscope.run.controls import controls
from qkscope.study import Checkpoint, Study, sources


def cost(study: Study) -> str:
    """In words. Only what lies on this machine is looked at: a hub's rotation settings are known when it is run."""
    course = sources(study)
    local = all(Path(each.source.model).exists() for each in course)
    extra = controls(study, course) if local else []
    lines = [f"{len(course)} checkpoints: {_amount(study, course)}"]
    if extra:
        lines.append(
            f"{len(extra)} counterfactual checkpoints, because rotation settings change: {_amount(study, extra)} more "
            "(controls: {rotation: false} leaves them out)"
        )
    elif not local and study.kind == "training" and study.controls.rotation:
        lines.append(
            f"wherever rotation settings change, {3 if study.controls.window else 2} counterfactual checkpoints more "
            "(controls: {rotation: false} leaves them out)"
        )
    return "\n".join(lines)


def refusals(study: Study) -> list[str]:
    """Checkpoints on this machine whose windows cannot be measured together, each with the reason."""
    from qkscope.checkpoints import load_config

    found = []
    course = [each for each in sources(study) if Path(each.source.model).exists()]
    for each in course + controls(study, course):
        try:
            check_windows(load_config(each.source), each.rings(study.windows))
        except CaptureError as error:
            found.append(f"{each.name}: {error}")
        except QkscopeError:
            continue  # that its configuration cannot be read is told when it is run
    return found


def _amount(study: Study, checkpoints: Iterable[Checkpoint]) -> str:
    windows = [each.window for each in checkpoints]
    tokens = f"up to {sum(windows):,} tokens a document"
    if study.corpus.documents:
        tokens = f"up to {sum(windows) * study.corpus.documents:,} tokens"
    return f"{len(windows) * study.groups} units, {tokens}"
