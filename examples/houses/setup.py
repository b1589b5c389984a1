# nsml:floydhub/pytorch:0.3.0-py3.17
from distutils.core import setup

setup(name="houses", version="1.0", description="")
