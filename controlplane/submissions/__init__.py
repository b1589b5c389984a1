"""Submissions: predictions of checkpoints on a dataset's hidden test set, and their scores."""
