#nsml: nsml/default_ml
from setuptools import setup

setup(name="boxes", version="1.0", install_requires=[])
