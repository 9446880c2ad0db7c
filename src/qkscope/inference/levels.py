"""Every level, smallest size and threshold of judgement, once, and each rule in words made from them."""

from __future__ import annotations

from qkscope.measures.null import FEWEST_GROUPS
from qkscope.measures.null import LEVEL as NULL_LEVEL
from qkscope.measures.pca import SAME as SAME_AXIS
from qkscope.words import bare, count, percent

# The chance of one false alarm among all series, steps and swings of a study; and of one comparison of heads
# within a checkpoint.
STUDY_LEVEL, CONTRAST_LEVEL = 0.02, 0.01
# A difference is excluded, or a number bounded, with this confidence.
CONFIDENCE = 0.95
# Smaller changes of a mean are not worth a word, however certain. A share must change by as much and by so many heads.
SMALLEST, SMALLEST_HEADS = 0.02, 2
# Half the variance of one head's move: the difference of two shares is never surer than one head.
ONE_HEAD = 0.5
# Tables without document groups are judged by leaving out groups of heads, if there are enough heads.
HEAD_GROUPS, FEWEST_HEADS = 10, 20
# With so many steps, their errors are steadied by the average over the steps.
STEPS_TO_POOL = 3
# A jump is at least so many times the median of the other steps, and as many times in the change per training step.
STANDS_OUT = 2.0
# A jump can be placed if its interval is at most so many times the median one, or this part of all training.
PLACED_WITHIN, PLACED_IN_PART = 2.0, 0.2
# A plateau has so many checkpoints within SMALLEST.
PLATEAU = 3
# A count of heads is beyond noise if it exceeds half more than expected by four deviations; perhaps, if what is
# expected by three. Heads share documents, so expectations are rough.
ROUGHLY, DEVIATIONS, PERHAPS = 0.5, 4.0, 3.0
# The value that fits both checkpoints lies within so many errors of the first one's: a head that really moved far
# says nothing about the noise half-way.
REACH = 1.5
# Where noise alone moves more than this share of the heads, real moves could hide among them.
HIDING = 0.1
# Heads share documents and so exceed their nulls together: three times the chance and three deviations are asked.
ABOVE_CHANCE = 3.0
# Content-focused heads have vanished below this share; early, if within this part of the checkpoints.
VANISHED, EARLY = 0.05, 1 / 3
# A change is the same over two windows if it differs by less than a quarter; the window's doing if less than half
# of it can remain over the same tokens.
SAME, REMAINS = 0.25, 0.5
# Numbers of two studies agree within so many standard errors of their difference.
AGREES_WITHIN = 2.0
# Numbers closer than this are equal: the rounding of a subtraction.
ROUNDING = 1e-12

# A part of a signal is nearly all of it, or most of it, above these shares.
NEARLY_ALL, MOST = 0.9, 0.5
# A straight line misses what a head knows of position if a function of it explains so much more of the variance.
MISSED = 0.1


def rule_of_axis() -> str:
    """When two axes are one."""
    return f"Two axes are one if they overlap by more than {bare(SAME_AXIS, 1)}, with {percent(CONFIDENCE)} confidence."


def rule_of_bias() -> str:
    """When keys are favoured for where they stand."""
    return (
        f"Keys are favoured if the mean bias over the window is beyond {bare(SMALLEST)} logits with "
        f"{percent(CONFIDENCE)} confidence."
    )


def rule_of_part() -> str:
    """When a part of a signal is most of it."""
    return (
        f"Nearly all is more than {percent(NEARLY_ALL)}, most more than {percent(MOST)}, with {percent(CONFIDENCE)} "
        "confidence."
    )


def smallest_heads(heads: int) -> int:
    """The fewest heads by which a share must change: SMALLEST of them, at least SMALLEST_HEADS; a whole number."""
    return max(SMALLEST_HEADS, -(-round(100 * SMALLEST) * heads // 100))


def rule_of_error(basis: str, groups: int) -> str:
    """How the ± of a number was made."""
    if basis == "documents":
        return f"± is one standard error from leaving out each of {groups} groups of documents."
    if basis == "heads":
        return (
            f"There are no groups of documents: ± is one standard error from leaving out each of {groups} groups of "
            "heads, which tells how much a number rests on single heads. Other documents may move it more."
        )
    if basis == "too few groups":
        return (
            f"± is one standard error from leaving out each of {groups} groups of documents. A test with fewer than "
            f"{FEWEST_GROUPS} groups cannot be passed, so nothing is called clear."
        )
    return f"No error is known: there are no groups of documents and fewer than {FEWEST_HEADS} heads."


def rule_of_components() -> str:
    """What noise is judged by between components, whose errors over documents are not kept together."""
    return (
        f"Components are compared by leaving out each of {HEAD_GROUPS} groups of heads, which tells how much a number "
        "rests on single heads; other documents may move it more."
    )


def rule_of_change() -> str:
    """When a change between checkpoints counts."""
    return (
        f"A change counts if it is at least {bare(SMALLEST)} (a share: {percent(SMALLEST)} of the heads and at least "
        f"{count(SMALLEST_HEADS, 'head')}) and passes a t-test held at {percent(STUDY_LEVEL)} over all series and "
        "steps of the study together. A step's error may be small by luck: the test averages it with the usual "
        f"step's, unless it is larger. There is no change if one of that size is excluded with {percent(CONFIDENCE)} "
        "confidence. Otherwise one cannot tell."
    )


def rule_of_majority() -> str:
    """When most heads are of one class."""
    return f"Most is more than half, with {percent(CONFIDENCE)} confidence."


def rule_of_contrast() -> str:
    """When a difference between two sets of heads counts."""
    return (
        f"A difference counts if it is at least {bare(SMALLEST)} and passes a t-test at {percent(CONTRAST_LEVEL)}, "
        "shared among the differences compared."
    )


def rule_of_jump() -> str:
    """What is called a jump."""
    return (
        f"A jump is a change that counts, at least {STANDS_OUT:g} times the median of the other steps of its series, "
        "also per training step where steps are known. It can be placed if its interval is at most "
        f"{PLACED_WITHIN:g} times the median interval or {percent(PLACED_IN_PART)} of the training measured."
    )


def rule_of_plateau() -> str:
    """What is called a plateau."""
    return (
        f"A plateau is {count(PLATEAU, 'checkpoint')} or more within {bare(SMALLEST)}, with no step's error above half "
        "of that."
    )


def rule_of_turning() -> str:
    """What is called a change of sign."""
    return (
        "A head changes the sign of r_k if |r_k| is above the low threshold before and after, along one axis: not "
        "where another axis became the first."
    )


def rule_of_noise() -> str:
    """When heads that change class or sign are more than noise."""
    return (
        "What noise alone would do follows from each head's own standard errors. More is called clear if it exceeds "
        f"{1 + ROUGHLY:g} times that by {DEVIATIONS:g} standard deviations and {percent(SMALLEST)} of the heads."
    )


def rule_of_signal() -> str:
    """When heads follow position more than by chance."""
    return (
        f"By chance alone {percent(NULL_LEVEL)} of the heads exceed their null, a t-test over groups of documents. A "
        f"signal is called so if {ABOVE_CHANCE:g} times as many do, and {ABOVE_CHANCE:g} standard deviations more."
    )


def rule_of_windows() -> str:
    """What remains of a change over the same tokens."""
    return (
        f"A change is the same over the same tokens if it counts there too and differs by less than "
        f"{percent(SAME)}. It is gone if it does not count there and less than {percent(REMAINS)} of it can be left."
    )


def rule_of_agreement() -> str:
    """When numbers of two studies agree."""
    return f"within {count(round(AGREES_WITHIN), 'standard error')} of the difference"


def rule_of_difference() -> str:
    """When numbers of two studies differ, and when one cannot tell."""
    return (
        f"Numbers differ beyond {count(round(AGREES_WITHIN), 'standard error')} of the difference, shares also beyond "
        "what one head is. Without an error on either side one cannot tell."
    )


def rule_of_seeds(ours: int, theirs: int) -> str:
    """When numbers of two arms of several runs agree."""
    return f"by Welch's t-test at {percent(1 - CONFIDENCE)} over {ours} and {theirs} seeds"


def rule_of_arms() -> str:
    """When a difference between two arms is put into words."""
    return (
        f"A difference over all checkpoints counts if it is at least {bare(SMALLEST)} and passes Welch's t-test over "
        f"seeds held at {percent(1 - CONFIDENCE)} over all numbers together."
    )


def rule_of_vanishing() -> str:
    """When a class of heads has vanished."""
    return (
        f"Vanished is below {percent(VANISHED)} for good, one standard error included; early is within the first "
        "third of the checkpoints."
    )


def rule_of_causes() -> str:
    """How a change is taken apart, and when a part counts."""
    return (
        "Each part is what exchanging weights, rotation settings or window adds, averaged over all orders of exchange "
        "for which it was measured (Shapley's values); parts sum to the change. A part counts if it is at least "
        f"{bare(SMALLEST)} and passes a t-test held at {percent(STUDY_LEVEL)} over all steps and parts together. "
        "Training's part is called another first axis where heads that kept theirs do not share in it."
    )
