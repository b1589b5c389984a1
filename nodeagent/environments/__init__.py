"""Dependencies of user code, prepared once per node: Python packages and images.

`requirements.py` reads the requirements and runs nothing. Without containers `virtualenvs.py` makes an
environment of wheels; in containers `images.py` gets the image and derives another by the recipe of
`recipe.py`. Both share `builds.py`, one build for all waiting sessions, and `hostconfig.py`, this
machine's configuration of pip and apt.
"""
