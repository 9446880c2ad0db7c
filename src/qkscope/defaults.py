"""Default settings shared by study files, scans, stored vectors and the command line."""

from typing import Final

GROUPS = 8  # of documents, for errors by leaving one out
COMPONENTS = 10  # principal components of a head
MEASURES: Final = ("rotation", "per_kind")  # beside the usual ones: they need no more than the moments
EXAMPLES, MOST_EXAMPLES = 2, 8  # excerpts of the texts whose attention a report shows
SEED = 0
BATCH_TOKENS = 4096  # in one pass through the model
# Of the taxonomy: a correlation is strong above HIGH and weak below LOW.
HIGH, LOW = 0.7, 0.3
# A run or scan in which more of a model's heads have no numbers has not succeeded.
MOST_UNMEASURED = 0.25
