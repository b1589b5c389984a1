#nsml:nsml/default_ml:latest
from distutils.core import setup

setup(name="retrieval", version="1.0", description="ns-ml", install_requires=[])
