"""What code asks for beside itself, made ready once a node: Python packages and images.

`requirements.py` reads what is asked for and runs nothing. Where programs run without an image,
`virtualenvs.py` makes an environment of wheels; in containers `images.py` gets the image and builds upon
it what `recipe.py` writes. Both share `builds.py`, one build for all who wait for it, and
`hostconfig.py`, what this machine's pip and apt are told.
"""
