#nsml: nsml/default_ml:latest
from distutils.core import setup

setup(name="shapes", version="1.0", description="nsml", install_requires=["numpy"])
