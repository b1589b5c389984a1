"""One file for each area of the control plane: what it is made of, and what it adds.

A file has `wire`, which makes the area's `Feature` of a `Core`, and a function for each part of it that other areas
use, too: they take that by `core.shared(FUNCTION)`. `controlplane/plane.py` lists the areas. Where each will lie once
there are packages by resource: docs/decisions/0003.
"""
