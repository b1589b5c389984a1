"""Exit codes of a submission's programs: the prediction's say why it failed in `nsml.paused`, the evaluation's why it gave no score.

A prediction that ends with any other code, or with 0 and without the artifact `PREDICTION`, ended early.
"""

LOAD_FAILED = 81
"""The program's `load` raised, or the checkpoint could not be read."""
INFER_FAILED = 82
"""The program's `infer`, or the data loader of the dataset's owner, raised."""
NO_PREDICTION = 83
"""Nothing was written to the prediction file."""
TOO_LARGE = 84
"""The prediction has more bytes than allowed."""
NOT_PAUSED = 85
"""`nsml.paused` was not called in time."""
PREDICTION_TIMEOUT = 86
"""The prediction took longer than allowed."""
MALFORMED = 87
"""The prediction is no regular file."""
PLATFORM_FAILED = 88
"""The platform did not hand out the checkpoint, or did not take the result: no program's fault, so the step is repeated."""

EVALUATION_FAILED = 91
"""`evaluation.py` is missing, or ended with another code than 0."""
NOT_FINITE = 92
"""The last line of the evaluation is no finite number."""
MALFORMED_ROWS = 93
"""The prediction has not one row for each row of the labels."""
EVALUATION_TIMEOUT = 94
"""The evaluation took longer than allowed."""
NOT_SCORED = 95
"""A dry run's labels are of no use: `evaluation.py` has no `--test_label_path`, and would read those of the test set."""

PREDICTION = "prediction"
"""Name of the predict step's artifact, and of its only file."""
EVALUATION = "evaluation"
"""Name of the evaluate step's artifact."""
RESULT = "result.json"
"""The only file of the artifact `EVALUATION`."""
