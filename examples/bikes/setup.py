#nsml: nsml/ml:cuda10.1-cudnn7-pytorch1.3keras2.3
from distutils.core import setup

setup(name="bikes", version="1.0", install_requires=[])
