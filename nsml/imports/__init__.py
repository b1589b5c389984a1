"""Runs of other tools as ended sessions: readers of TensorBoard, MLflow and W&B folders.

A reader finds the runs of a folder, and reads one at a time into a `Recording` on disk, of which `archives` makes the backup
of a session that `nsml.client.session_restores` restores. Nothing in such a folder is trusted, and no link is followed.
"""
