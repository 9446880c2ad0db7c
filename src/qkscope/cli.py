"""The command line: parses, calls one library function, prints. Nothing is computed here."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from qkscope import __version__
from qkscope.defaults import COMPONENTS, GROUPS, MEASURES
from qkscope.errors import QkscopeError
from qkscope.progress import quieten

FOLDER = click.Path(path_type=Path, file_okay=False)
PATH = click.Path(path_type=Path)
AT_LEAST_0, AT_LEAST_1, AT_LEAST_2 = (click.IntRange(min=n) for n in (0, 1, 2))
ABOVE_0 = click.FloatRange(min=0, min_open=True)
EXIT_STATUS = {"finished": 0, "failed": 3, "unfinished": 4}  # of `qkscope status`
ALARMED = 3  # of `qkscope watch --until`
Command = Callable[..., None]
flag = partial(click.option, is_flag=True)
repeated = partial(click.option, multiple=True)


class Commands(click.Group):
    """Print a user's mistake as a sentence and exit with status 1; Ctrl-C exits with 130 and no traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except QkscopeError as error:
            click.echo(f"qkscope: {error}", err=True)
            sys.exit(1)
        except KeyboardInterrupt as error:
            message = (
                str(error) or "interrupted; finished work is kept: run the same command again to continue"
            )
            click.echo(f"qkscope: {message}", err=True)
            sys.exit(130)


def names(ctx: click.Context, param: click.Parameter, text: str | None) -> list[str]:
    """The names in a comma-separated list."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def windows(ctx: click.Context, param: click.Parameter, text: str | None) -> list[int]:
    found = names(ctx, param, text)
    if wrong := [each for each in found if not re.fullmatch("[1-9][0-9]{1,8}", each)]:
        raise click.BadParameter(f"{wrong[0]!r} is not a number of tokens (10 or more)")
    return [int(each) for each in found]


def all_or_count(ctx: click.Context, param: click.Parameter, text: str) -> str | int:
    if text != "all" and not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise click.BadParameter(f"{text!r} is neither 'all' nor a number of heads")
    return text if text == "all" else int(text)


def model_options(command: Command) -> Command:
    """Options of the commands that read one model."""
    for option in (
        flag("--trust-remote-code", help="Run code that comes with the model. Only if you trust it."),
        click.option("--device", help="cpu, cuda, cuda:1, mps.  [default: cuda if available, else cpu]"),
        click.option(
            "--seed", type=AT_LEAST_0, default=0, help="Seed of everything that is drawn at random."
        ),
        repeated("--text", "text_paths", type=PATH, help="Text file or folder; may be repeated."),
        click.option("--tokenizer", help="Folder or hub name of the tokenizer.  [default: the model's]"),
        click.option("--revision", help="Branch, tag or commit of a hub model."),
    ):
        command = option(command)
    return command


replace_option = flag("--replace", help="Overwrite finished results of another study in this folder.")
out_option = partial(click.option, "--out", type=FOLDER)
dtype_option = partial(click.option, "--dtype", help="auto, float32, bfloat16 or float16.")
documents_option = partial(click.option, "--documents", type=AT_LEAST_1)
measures_option = partial(click.option, "--measures", callback=names, metavar="NAME,...")


def end_on_second_interrupt() -> Callable[[], object]:
    """Make a second Ctrl-C end the process: the first is an exception, which a library may swallow. Returns the undo.

    Nothing is lost by it: every file is written whole or not at all.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        return lambda: None
    interrupts = itertools.count(1)

    def interrupted(number: int, frame: Any) -> None:
        if next(interrupts) > 1:
            message = (
                "qkscope: interrupted twice; finished work is kept: run the same command again to go on\n"
            )
            os.write(2, message.encode())
            os._exit(130)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupted)
    return lambda: signal.signal(signal.SIGINT, before)


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "auto_envvar_prefix": "QKSCOPE",
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="qkscope")
@flag("-q", "--quiet", help="Only results, warnings and errors.")
@flag("-v", "--verbose", help="Also print what transformers and other libraries report.")
def main(quiet: bool, verbose: bool) -> None:
    """Measure how a language model's attention heads come to encode and use position while it trains."""
    click.get_current_context().call_on_close(end_on_second_interrupt())
    quieten(quiet)
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")


@main.command()
@out_option(default=Path("results/nano"), help="Results folder.")
@click.option("--seed", type=AT_LEAST_0, default=0, help="Training seed.")
@replace_option
def demo(out: Path, seed: int, replace: bool) -> None:
    """Train a nano SmolLM3 here, save its checkpoints, and run the whole pipeline on them."""
    from qkscope.nano import demo as train_and_measure

    click.echo(train_and_measure(out, seed=seed, replace=replace))


@main.command()
@click.argument("study", type=PATH)
@out_option(help="Results folder.  [default: results/<study name>]")
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local")
@click.option("--shard", metavar="I/N", help="Do only the I-th of N parts of the work (1/8 to 8/8).")
@replace_option
def run(study: Path, out: Path | None, engine: str, shard: str | None, replace: bool) -> None:
    """Measure a study and write tables, figures and report. Resumes where it stopped."""
    from qkscope.run import run as run_study

    _print(run_study(study, out=out, engine=engine, shard=shard, replace=replace))


@main.command()
@click.argument("source", type=PATH, metavar="STUDY|FOLDER")
@out_option(help="Results folder.  [default: results/<name of the study or folder>]")
@click.option("--until", type=AT_LEAST_0, metavar="STEP", help="End when this step is measured.")
@click.option("--poll", type=ABOVE_0, default=10.0, help="Seconds between checks.")
def watch(source: Path, out: Path | None, until: int | None, poll: float) -> None:
    """Measure checkpoints as a training run writes them, and keep the report current.

    Exit status with --until: 0, 3 if one of the study's alarms was raised, else 1 if a checkpoint could not be
    measured.
    """
    from qkscope.run.watch import watch as watch_checkpoints

    found = watch_checkpoints(source, out, until, poll)
    _print(found)
    sys.exit(ALARMED if found.alarms else bool(found.problems))


@main.command()
@click.argument("sources", metavar="FOLDER|MODEL [FOLDER]...", nargs=-1, required=True)
@out_option(type=PATH, help="The file to write.  [default: <name>.yaml]")
def init(sources: tuple[str, ...], out: Path | None) -> None:
    """Write a commented study file for the checkpoints in a folder or of a hub model.

    Several folders are the phases of one training run, in order: a base run, then its long-context continuation.
    """
    from qkscope.study.init import init as write_study

    path, written = write_study(sources, out)
    click.echo("\n  ".join([f"written: {path}\ncheck:", *written.check]))
    click.echo(f"then: qkscope validate {path} && qkscope run {path}")


@main.command()
@click.argument("study", type=PATH)
@flag("--json", "as_json", help="Print mistakes, warnings, findings and cost as JSON.")
def validate(study: Path, as_json: bool) -> None:
    """Check a study file: print every mistake with its line, suspicious checkpoints, and the cost of the study."""
    from qkscope.run.preflight import preflight

    found = preflight(study)
    if as_json:
        _print_json(asdict(found))
    else:
        for line in (*found.mistakes, *found.warnings, *found.findings):
            click.echo(line, err=True)
        if not found.mistakes:
            click.echo(f"{study}: no mistakes found\n{found.cost}")
    sys.exit(bool(found.mistakes))


@main.command(name="ls")
@click.argument("model")
@flag("--json", "as_json", help="Print checkpoints and findings as JSON.")
def list_checkpoints(model: str, as_json: bool) -> None:
    """List a model's checkpoints in training order as YAML to paste, and report suspicious ones."""
    from qkscope.checkpoints import checkpoints_yaml, list_revisions
    from qkscope.checkpoints.doctor import inspect_model

    if as_json:
        checkpoints = [asdict(each) for each in list_revisions(model)]
        _print_json({"checkpoints": checkpoints, "findings": [asdict(each) for each in inspect_model(model)]})
        return
    click.echo(checkpoints_yaml(model))
    for finding in inspect_model(model):
        click.echo(finding, err=True)


@main.command()
@click.argument("model")
@model_options
@click.option(
    "--max-length",
    type=AT_LEAST_2,
    help="Number of tokens read from each document.  [default: 2048, or the model's positions if it has fewer]",
)
@documents_option(default=32, help="Maximum number of documents.")
@click.option(
    "--start",
    type=click.Choice(["random", "beginning"]),
    default="random",
    help="Where to start reading long texts.",
)
@flag("--chunk", help="Cut long texts into consecutive documents.  [default: only a single text]")
@dtype_option(default="auto")
@click.option(
    "--heads",
    callback=all_or_count,
    default="all",
    metavar="all|N",
    help="Query heads to measure: all, or a random sample of N.",
)
@click.option(
    "--save-vectors",
    is_flag=False,
    flag_value=0.05,
    type=click.FloatRange(0, 1, min_open=True),
    metavar="[RATE]",
    help="Also write this share of the vectors as parquet.  [0.05 without a value]",
)
@flag("--token-str", help="Also write the token of each vector.")
@measures_option(
    default=",".join(MEASURES), help="Optional measures: rotation, per_kind, plasticity; empty for none."
)
@flag("--sliding", "include_sliding", help="Include sliding-window layers.")
@flag("--allow-pickle", help="Read .bin weights, which can run code. Only if you trust them.")
@out_option(help="Write the tables here.  [default: results/<model name>]")
@replace_option
def scan(model: str, out: Path | None, chunk: bool, **options: Any) -> None:
    """Measure one model: print a summary of its heads and write their tables."""
    from qkscope.scanning.scan import scan as scan_model
    from qkscope.study import folder_name

    revision = f"@{options['revision']}" if options["revision"] else ""
    out = out or Path("results") / folder_name(Path(model).name + revision)
    result = scan_model(model, out=out, chunk=chunk or None, **options)
    _print(result)
    if result.problem:
        raise QkscopeError(f"{out}: {result.problem}")


@main.command()
@click.argument("model")
@repeated(
    "--rope",
    required=True,
    metavar="SETTINGS",
    help="theta=2e6, linear:factor=4, yarn:factor=8,original=4096, llama3:factor=8 or dynamic:factor=4; with @0-11 "
    "only in these layers; may be repeated.",
)
@click.option("--layers", help="Layers of settings that name none, such as 0-11.  [default: all]")
@click.option(
    "--windows",
    callback=windows,
    metavar="N,...",
    help="Tokens read from each document.  [default: 2048 or fewer]",
)
@model_options
@documents_option(default=16)
@dtype_option(default="auto")
@out_option(help="Write tables and figure here.  [default: results/<model name>-whatif]")
@replace_option
def whatif(model: str, rope: tuple[str, ...], out: Path | None, **options: Any) -> None:
    """Try other RoPE settings on a model without training: loss by position and what changes in each head."""
    from qkscope.scanning.whatif import whatif as try_settings
    from qkscope.study import folder_name

    out = out or Path("results") / f"{folder_name(Path(model).name)}-whatif"
    click.echo(try_settings(model, rope, out=out, **options))
    files = "whatif.csv, whatif_heads.csv, whatif_wavelengths.csv, candidates.json, figure"
    click.echo(f"written to {out}: {files}")


@main.command()
@click.argument("source", metavar="RESULTS|MODEL")
@repeated(
    "--heads",
    metavar="HEADS",
    help="top:N:MEASURE, class:NAME, role:NAME, layer:3, L4H2,L5H0 or all; may be repeated.  [default: each class]",
)
@repeated(
    "--part",
    "parts",
    type=click.Choice(["position", "query_position", "key", "match", "sink", "head"]),
    help="What to remove; may be repeated.  [default: all, one at a time]",
)
@click.option("--checkpoint", help="Checkpoint of a study.  [default: the last]")
@model_options
@click.option(
    "--max-length", type=click.IntRange(min=8), help="Tokens of each document.  [default: the window]"
)
@documents_option(default=16, help="Maximum number of scored documents.")
@click.option("--draws", type=AT_LEAST_0, default=3, help="Random control sets for each set of heads.")
@dtype_option(default="float32")
@out_option(help="Folder for ablation.csv.  [default: RESULTS]")
def ablate(source: str, parts: tuple[str, ...], **options: Any) -> None:
    """Measure what a model loses without a part of its attention scores in some heads."""
    from qkscope.capture.ablation import PARTS
    from qkscope.scanning.ablate import ablate as remove

    click.echo(remove(source, parts=parts or PARTS, **options))


@main.command()
@click.argument("vectors", type=PATH, metavar="FOLDER|hub:OWNER/NAME")
@out_option(required=True, help="Folder for the dataset and its tables.")
@click.option(
    "--gqa-ratio", type=AT_LEAST_1, help="Query heads per key head, if the folder names do not show it."
)
@click.option("--groups", type=AT_LEAST_1, default=GROUPS, help="Groups of documents for the jackknife.")
@click.option("--components", type=AT_LEAST_1, default=COMPONENTS, help="Principal components of each head.")
@click.option(
    "--rope-theta",
    type=ABOVE_0,
    help="RoPE base the vectors were rotated with; adds the measures that need it.",
)
@click.option(
    "--rotary-dim", type=AT_LEAST_2, help="Number of leading dimensions that were rotated.  [default: all]"
)
@flag("--interleaved", help="Rotary pairs are neighbouring dimensions (2i, 2i + 1).")
@measures_option(
    default="rotation,per_kind,plasticity",
    help="Optional measures; plasticity needs files with buckets; empty for none (four times faster).",
)
@replace_option
def analyze(
    vectors: Path,
    out: Path,
    rope_theta: float | None,
    rotary_dim: int | None,
    interleaved: bool,
    **options: Any,
) -> None:
    """Measure stored query and key vectors (public parquet layout), from a folder or the hub."""
    from qkscope.scanning.analyze import analyze as analyze_vectors
    from qkscope.sums.rotation import Rotation

    rotation = None
    if rope_theta is not None:
        rotation = partial(Rotation.plain, theta=rope_theta, rotary_dim=rotary_dim, interleaved=interleaved)
    elif rotary_dim is not None or interleaved:
        raise QkscopeError("--rotary-dim and --interleaved need --rope-theta: add it, or leave them out")
    result = analyze_vectors(vectors, out=out, rotation=rotation, **options)
    click.echo(result.summary())
    click.echo(f"written to {out}: measures.safetensors, qk.csv, heads.csv, transitions.csv")
    if result.problems:
        raise QkscopeError("\n".join(["some heads could not be measured:", *result.problems]))


@main.command()
@click.argument("results", type=PATH)
@out_option(help="Where the figures go.  [default: RESULTS/figures]")
@click.option(
    "--spacing",
    type=click.Choice(["order", "steps"]),
    default="order",
    help="How line plots space checkpoints: evenly, or by training steps.",
)
def figures(results: Path, out: Path | None, spacing: Literal["order", "steps"]) -> None:
    """Draw all figures of a results folder or a qk.csv, each with its data and a README."""
    from qkscope.figures import draw_all

    _print(draw_all(_local(results), out=out, spacing=spacing))


@main.command()
@click.argument("results", type=PATH)
@click.argument("other", type=PATH, required=False)
@out_option(type=PATH, help="The file to write.  [default: RESULTS/report.html, or report_with_OTHER.html]")
def report(results: Path, other: Path | None, out: Path | None) -> None:
    """Write report.html for a results folder or a qk.csv, or for two of them together."""
    from qkscope.report import write_report

    click.echo(write_report(_local(results), out=out, beside=other and _local(other)))


@main.command()
@click.argument("results", type=PATH, nargs=-1, required=True)
@repeated(
    "--with",
    "others",
    required=True,
    metavar="published|RESULTS",
    help="What to compare with; may be repeated.",
)
@flag("--json", "as_json", help="Print the comparison as JSON.")
@click.option("--csv", type=PATH, help="Also write the rows to this file, and all heads to a second one.")
def compare(results: tuple[Path, ...], others: tuple[str, ...], as_json: bool, csv: Path | None) -> None:
    """Compare two results: which numbers agree within their errors and which differ.

    Several seeds of two trainings: A1 A2 A3 --with B1 --with B2 --with B3; errors are then over seeds.
    """
    from qkscope.comparison import compare as compare_results

    theirs = "published" if others == ("published",) else [_local(each) for each in others]
    found = compare_results([_local(each) for each in results], theirs)
    if csv is not None:
        found.save(csv)
    if as_json:
        click.echo(found.to_json())
    else:
        _print(found)


@main.command()
@click.argument("results", type=PATH)
@flag("--verify", help="Check every byte of units, tables, figures and report against the manifest.")
@flag("--json", "as_json", help="Print every unit as JSON.")
def status(results: Path, verify: bool, as_json: bool) -> None:
    """Show which units are done, running, failed or waiting, from the files alone.

    Exit status: 0 if the study is finished, 3 if something failed, 4 if something is still to be done, 1 if files are
    damaged.
    """
    from qkscope.run import status as status_of

    found = status_of(results, verify=verify)
    if as_json:
        _print_json(asdict(found) | {"state": found.state})
    else:
        _print(found)
    if found.damage:
        raise QkscopeError("\n".join([*found.damage, "run the study again to rewrite these files"]))
    if verify and not as_json:
        _print("all tables, figures and pages match the manifest")
    sys.exit(EXIT_STATUS[found.state])


@main.command()
@click.argument("results", type=FOLDER)
@click.argument("address", metavar="hub:OWNER/NAME")
@flag("--space", help="Publish the report alone, as the page of a static Space.")
@flag("--private", help="Make the dataset or Space private if it is new.")
@flag("--examples", help="Publish the excerpts of the texts that the report shows, too.")
def push(results: Path, address: str, **options: bool) -> None:
    """Publish tables, figures and report as a dataset on the hub: no weights, no texts."""
    from qkscope.run.publish import push as publish

    click.echo(publish(results, address, **options))


def _local(address: Path | str) -> Path:
    """A local path; results at hub:owner/name are fetched first."""
    from qkscope.run.publish import local

    return local(address)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def _print(thing: object) -> None:
    """Print to standard output without interpreting names as markup."""
    from rich.console import Console

    # Without a terminal there is no width to fit: tables keep their columns.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(thing, markup=False, highlight=False)
