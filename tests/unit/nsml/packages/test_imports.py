"""What programs import that nothing lists, and what is no such import."""

from __future__ import annotations

import pytest

from nsml.packages.distributions import missing_line, missing_package
from nsml.packages.imports import foreign_imports, missing_imports


def imported(files: dict[str, str], entry: str = "main.py") -> list[str]:
    def read(path: str) -> bytes | None:
        return files[path].encode() if path in files else None

    found = foreign_imports([entry], files, read)
    return [one.module for one in found]


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import numpy as np, os.path\nfrom torch.nn import functional", ["numpy", "torch.nn"]),
        ("def main():\n  import cv2\nclass A:\n  import yaml", ["cv2", "yaml"]),
        ("try:\n  import a\nexcept ImportError:\n  import b\nelse:\n  import c", ["c"]),
        ("try:\n  import a\nexcept (OSError, ModuleNotFoundError):\n  a = None", []),
        ("try:\n  import a\nexcept:\n  pass", []),
        ("try:\n  import a\nexcept ValueError:\n  import b", ["a", "b"]),
        ("with contextlib.suppress(ImportError):\n  import a\nwith x:\n  import b", ["b"]),
        ("if TYPE_CHECKING:\n  import a\nelse:\n  import b", ["b"]),
        ("if typing.TYPE_CHECKING:\n  import a", []),
        ("if sys.version_info < (3, 11):\n  import tomli\nelse:\n  import tomllib", []),
        ("if importlib.util.find_spec('a'):\n  import a", []),
        ("if __name__ == '__main__':\n  import a", ["a"]),
        ("from __future__ import annotations\nimport nsml, json, distutils, winreg", []),
        ("import broken(", []),
        ("\ufeffimport a", ["a"]),
        ("# -*- coding: latin-1 -*-\nimport a", ["a"]),
        ("x = " + "-" * 100_000 + "1\nimport a", []),
        ("\0", []),
    ],
)
def test_what_a_program_cannot_do_without(source: str, modules: list[str]) -> None:
    assert imported({"main.py": source}) == modules


def test_files_of_the_folder_are_followed_and_are_no_packages() -> None:
    files = {
        "main.py": "import model\nfrom lib.data import load\nfrom lib import more\nimport gone.away",
        "model.py": "from . import sibling",
        "sibling.py": "import scipy",
        "lib/__init__.py": "from .inner import x",
        "lib/inner.py": "import einops\nfrom ..model import y",
        "lib/data.py": "import pandas\nimport main",
        "lib/more.py": "import timm",
        "tests/test_x.py": "import pytest",
        "gone/x.py": "",
    }
    assert {*imported(files)} == {"scipy", "einops", "pandas", "timm"}


def test_modules_beside_a_program_in_a_folder_below_are_found() -> None:
    files = {
        "src/train.py": "import net, helper",
        "src/net.py": "import torch",
        "helper.py": "import six",
    }
    assert imported(files, "src/train.py") == ["torch", "six"]


@pytest.mark.parametrize(
    ("module", "required", "package"),
    [
        ("numpy.linalg", set(), "numpy"),
        ("numpy", {"pandas"}, ""),
        ("numpy", {"six"}, "numpy"),
        ("cv2", set(), "opencv-python-headless"),
        ("cv2", {"opencv-contrib-python"}, ""),
        ("PIL.Image", {"torchvision"}, ""),
        ("sklearn", {"scikit-learn"}, ""),
        ("yaml", set(), "pyyaml"),
        ("cupy", {"cupy-cuda12x"}, ""),
        ("pytorch_lightning", {"pytorch-lightning"}, ""),
        ("torch_geometric", set(), "torch-geometric"),
        ("google.protobuf", set(), "protobuf"),
        ("google.cloud.storage", set(), ""),
        ("snappy", {"python-snappy"}, ""),
    ],
)
def test_the_package_to_name(module: str, required: set[str], package: str) -> None:
    assert missing_package(module, required) == package


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("cv2", "opencv-python-headless"),
        ("PIL", "pillow"),
        ("yaml", "pyyaml"),
        ("bs4", "beautifulsoup4"),
        ("skimage", "scikit-image"),
        ("sklearn", "scikit-learn"),
        ("torch", "torch"),
        ("pytorch_lightning", "pytorch-lightning"),
        ("google.protobuf", "protobuf"),
        # whose package of that name may be anybody's, and what its package is installed without
        ("utils", ""),
        ("my_project", ""),
        ("torch.nothing", ""),
        ("google", ""),
        ("x'; os.system('id", ""),
    ],
)
def test_the_line_that_a_program_lacked(module: str, line: str) -> None:
    assert missing_line(f"ModuleNotFoundError: No module named '{module}'") == line


def test_other_exceptions_lack_no_line() -> None:
    assert not missing_line("ImportError: cannot import name 'x' from 'cv2'")
    assert not missing_line("last output: ModuleNotFoundError: No module named 'cv2'")
    assert not missing_line("ModuleNotFoundError: No module named 'cv2'; 'cv2' is not a package")


def test_modules_of_one_package_are_named_once() -> None:
    source = b"import torch.nn\nimport torch\nimport mpl_toolkits, pylab"
    found = foreign_imports(["main.py"], ["main.py"], lambda _: source)
    assert [*missing_imports(found, ())] == ["torch", "matplotlib"]
