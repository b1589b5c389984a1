#nsml: nsml/default_ml:cuda9
from distutils.core import setup

setup(name="reviews", version="1.0", description="nsml")
