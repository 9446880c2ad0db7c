"""Names of public training runs: order, phases, labels."""

import random

import pytest
import yaml

from qkscope.checkpoints.revisions import (
    order_revisions,
    parse_revision,
    phases_yaml,
    short_number,
    split_revisions,
)

SMOLLM3 = {
    "stage1-step-40000": "S1-40K",
    "stage1-step-1200000": "S1-1.2M",
    "stage1-step-2400000": "S1-2.4M",
    "stage1-step-3440000": "S1-3.4M",
    "stage2-step-4200000": "S2-4.2M",
    "stage3-step-4720000": "S3-4.7M",
    "lc-4k-to-32k-step-4000": "LC1-4K",
    "lc-4k-to-32k-step-20000": "LC1-20K",
    "lc-32k-to-64k-step-4000": "LC2-4K",
    "lc-32k-to-64k-step-20000": "LC2-20K",
}


def shuffled(names):
    names = list(names)
    random.Random(3).shuffle(names)
    return names


def test_the_published_smollm3_checkpoints_get_their_published_order_and_labels():
    ordered = order_revisions(shuffled(SMOLLM3))
    assert {r.name: r.label for r in ordered} == SMOLLM3
    assert [r.name for r in ordered] == list(SMOLLM3)
    labels = ["Stage 1"] * 4 + ["Stage 2", "Stage 3"] + ["LC 4K→32K"] * 2 + ["LC 32K→64K"] * 2
    assert [r.phase_label for r in ordered] == labels
    assert [r.phase_key for r in ordered] == sorted(r.phase_key for r in ordered)


@pytest.mark.parametrize(
    ("name", "phase", "step", "tokens", "label"),
    [
        ("step-240000", "Training", 240_000, None, "240K"),
        ("step0", "Training", 0, None, "0"),
        ("step512", "Training", 512, None, "512"),
        ("step143000", "Training", 143_000, None, "143K"),
        ("step1000-tokens4B", "Training", 1000, 4 * 10**9, "1K"),
        ("stage1-step150-tokens1B", "Stage 1", 150, 10**9, "S1-150"),
        (
            "stage2-ingredient3-step12000-tokens26B",
            "Stage 2 ingredient 3",
            12_000,
            26 * 10**9,
            "S2i3-12K",
        ),
        ("ckpt_000", "Training", 0, None, "0"),
        ("ckpt_359", "Training", 359, None, "359"),
        ("step-001000-2BT", "Training", 1000, 2 * 10**9, "1K"),
        ("checkpoint-500", "Training", 500, None, "500"),
        ("step557000-tokens2.4T", "Training", 557_000, 2_400 * 10**9, "557K"),
        ("global_step1000", "Training", 1000, None, "1K"),
        ("lc-256-to-1024-step-40", "LC 256→1K", 40, None, "LC-40"),
        ("runs/mine/checkpoint-1500", "Training", 1500, None, "1.5K"),
        ("EleutherAI/pythia-70m@step3000", "Training", 3000, None, "3K"),
    ],
)
def test_each_scheme_is_read(name, phase, step, tokens, label):
    revision = parse_revision(name)
    assert revision is not None
    assert (revision.name, revision.phase_label, revision.step, revision.tokens, revision.label) == (
        name,
        phase,
        step,
        tokens,
        label,
    )


@pytest.mark.parametrize(
    "name", ["main", "", "v1.0", "it-SFT", "refs/pr/3", "step", "step-x", "mystep-100", "stage1", "100"]
)
def test_names_that_are_no_checkpoint(name):
    assert parse_revision(name) is None


def test_pythia_sorts_by_number_not_by_letters():
    steps = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *range(1000, 144_000, 1000)]
    ordered = order_revisions(shuffled(f"step{s}" for s in steps))
    assert [r.step for r in ordered] == steps
    assert len({r.label for r in ordered}) == len(steps) == 154


def test_smollm3s_full_list_orders_by_stage_then_step_and_labels_differ():
    names = [f"stage1-step-{s}" for s in range(40_000, 3_450_000, 40_000)]
    names += [f"stage2-step-{s}" for s in range(3_480_000, 4_200_001, 40_000)]
    names += [f"stage3-step-{s}" for s in range(4_240_000, 4_720_001, 40_000)]
    for lc in ("lc-4k-to-32k", "lc-32k-to-64k"):
        names += [f"{lc}-step-{s}" for s in range(4000, 20_001, 4000)]
    ordered, other = split_revisions(shuffled([*names, "main", "it-SFT"]))
    assert [r.name for r in ordered] == names
    assert sorted(other) == ["it-SFT", "main"]
    labels = {r.name: r.label for r in ordered}
    assert len(set(labels.values())) == len(names)
    assert labels["stage1-step-3440000"] == "S1-3.44M"  # 3.4M alone would be 3400000's too
    assert labels["stage1-step-40000"] == "S1-40K"


def test_olmo_ingredients_follow_stage_one_one_after_the_other():
    names = [
        "stage1-step1000-tokens5B",
        "stage1-step20000-tokens84B",
        "stage2-ingredient1-step1000-tokens5B",
        "stage2-ingredient1-step12000-tokens51B",
        "stage2-ingredient2-step1000-tokens5B",
    ]
    assert [r.name for r in order_revisions(shuffled(names))] == names


def test_order_keeps_every_name_once_and_puts_what_is_no_checkpoint_last():
    ordered = order_revisions(["main", "step20", "zeta", "step3", "step20", "alpha"])
    assert [r.name for r in ordered] == ["step3", "step20", "main", "zeta", "alpha"]
    assert [r.label for r in ordered][2:] == ["main", "zeta", "alpha"]
    assert ordered[2].step is None
    assert ordered[2].phase_key > ordered[1].phase_key


def test_a_plain_run_continued_in_stages_and_long_context_keeps_training_order():
    names = ["step-900", "stage1-step-10", "lc-1k-to-2k-step-5"]
    assert [r.name for r in order_revisions(reversed(names))] == names


def test_untrained_and_nothing():
    assert order_revisions([]) == []
    assert split_revisions(["main"]) == ([], ["main"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1K"),
        (1234, "1.2K"),
        (999_949, "999.9K"),
        (999_999, "1M"),
        (4_720_000, "4.7M"),
    ],
)
def test_short_numbers(value, text):
    assert short_number(value) == text


def test_close_steps_get_the_digits_that_tell_them_apart():
    labels = [r.label for r in order_revisions(["step1234567", "step1234568", "step2000000"])]
    assert labels == ["1.234567M", "1.234568M", "2M"]


def test_the_yaml_to_paste_is_the_published_studys_phases():
    phases = yaml.safe_load(phases_yaml(order_revisions(shuffled(SMOLLM3))))["phases"]
    assert [(p["label"], p["window"]) for p in phases] == [
        ("Stage 1", 4096),
        ("Stage 2", 4096),
        ("Stage 3", 4096),
        ("LC 4K→32K", 32768),
        ("LC 32K→64K", 65536),
    ]
    entries = [entry for phase in phases for entry in phase["checkpoints"]]
    assert {e["revision"]: e["label"] for e in entries} == SMOLLM3
    assert entries[-1] == {"revision": "lc-32k-to-64k-step-20000", "step": 20000, "label": "LC2-20K"}


def test_the_yaml_of_a_plain_run_keeps_labels_as_text_and_leaves_the_window_to_the_study():
    text = phases_yaml(order_revisions(["checkpoint-500", "checkpoint-1000"]), "folder", "runs/mine/")
    assert yaml.safe_load(text)["phases"] == [
        {
            "label": "Training",
            "checkpoints": [
                {"folder": "runs/mine/checkpoint-500", "step": 500, "label": "500"},
                {"folder": "runs/mine/checkpoint-1000", "step": 1000, "label": "1K"},
            ],
        }
    ]
