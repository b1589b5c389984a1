"""Boards: of sessions by a metric, and of submissions to a dataset."""
