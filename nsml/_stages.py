"""The stage of a session of `nsml submit` or `nsml infer`, which the agent says in NSML_STAGE.

The program is the one that trained, so what it reports and saves before `nsml.paused` is not recorded.
"""

from __future__ import annotations

import os

PREDICT = "predict"
PREDICT_TEST = "predict-test"
INFER = "infer"
_LOADING = (PREDICT, PREDICT_TEST, INFER)


def stage(run_dir: str) -> str:
    """Return the stage of this session, "" if `nsml.paused` does in it what it does in a fork."""
    name = os.environ.get("NSML_STAGE", "") if run_dir else ""
    return name if name in _LOADING else ""
