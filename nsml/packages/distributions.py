"""Names of modules and of the packages that have them: `cv2` is in `opencv-python-headless`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from nsml.packages.requirements import canonical

if TYPE_CHECKING:
    from collections.abc import Collection

_PACKAGES: Final = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "Levenshtein": "levenshtein",
    "MySQLdb": "mysqlclient",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "absl": "absl-py",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless opencv-python opencv-contrib-python opencv-contrib-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu faiss-gpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "google.protobuf": "protobuf",
    "grpc": "grpcio",
    "hydra": "hydra-core",
    "igraph": "igraph python-igraph",
    "imblearn": "imbalanced-learn",
    "jwt": "pyjwt",
    "kafka": "kafka-python",
    "magic": "python-magic",
    "mmcv": "mmcv mmcv-full",
    "mpl_toolkits": "matplotlib",
    "open_clip": "open-clip-torch",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary psycopg2",
    "pylab": "matplotlib",
    "pynvml": "nvidia-ml-py pynvml",
    "ruamel": "ruamel.yaml",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "tensorflow": "tensorflow tensorflow-cpu tensorflow-gpu tensorflow-macos tf-nightly",
    "umap": "umap-learn",
    "usb": "pyusb",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Modules with another name than their package: the packages that have them, first the one to name."""

_COMES_WITH: Final = {
    "numpy": (
        "accelerate albumentations catboost datasets evaluate faiss-cpu gym gymnasium imageio jax keras lightgbm"
        " matplotlib opencv-contrib-python opencv-contrib-python-headless opencv-python opencv-python-headless"
        " pandas peft pytorch-lightning scikit-image scikit-learn scipy seaborn sentence-transformers"
        " stable-baselines3 tensorboard tensorflow tensorflow-cpu timm torchaudio torchmetrics torchvision"
        " transformers xgboost"
    ),
    "torch": (
        "accelerate bitsandbytes deepspeed fastai lightning open-clip-torch peft pytorch-lightning"
        " sentence-transformers stable-baselines3 timm torch-geometric torchaudio torchmetrics torchvision trl"
    ),
    "pandas": "datasets evaluate seaborn statsmodels fastai stable-baselines3",
    "scipy": "albumentations jax lightgbm scikit-image scikit-learn seaborn sentence-transformers statsmodels xgboost",
    "matplotlib": "fastai seaborn pycocotools stable-baselines3",
    "pillow": "fastai imageio matplotlib scikit-image sentence-transformers torchvision timm",
    "scikit-learn": "fastai imbalanced-learn sentence-transformers umap-learn",
    "torchvision": "fastai open-clip-torch timm",
    "transformers": "peft sentence-transformers trl",
    "pyyaml": (
        "accelerate albumentations datasets huggingface-hub hydra-core lightning mlflow omegaconf peft"
        " pytorch-lightning timm transformers wandb"
    ),
    "omegaconf": "hydra-core",
    "tqdm": "datasets evaluate huggingface-hub lightning openai peft pytorch-lightning sentence-transformers transformers",
    "requests": "datasets evaluate huggingface-hub mlflow tensorflow tensorflow-cpu transformers wandb",
    "huggingface-hub": "accelerate datasets evaluate peft sentence-transformers timm tokenizers transformers",
    "tokenizers": "transformers",
    "safetensors": "accelerate peft timm transformers",
    "datasets": "evaluate trl",
    "accelerate": "peft trl",
    "pyarrow": "datasets",
    "keras": "tensorflow tensorflow-cpu",
    "tensorboard": "tensorflow tensorflow-cpu",
    "protobuf": "tensorboard tensorflow tensorflow-cpu wandb onnx",
    "torchmetrics": "lightning pytorch-lightning",
    "packaging": "accelerate datasets huggingface-hub lightning matplotlib peft pytorch-lightning transformers",
    "python-dateutil": "matplotlib pandas",
    "joblib": "scikit-learn",
    "networkx": "scikit-image torch",
    "sympy": "torch",
    "jinja2": "torch",
    "six": "python-dateutil tensorboard tensorflow pandas matplotlib",
    "pytz": "pandas",
}
"""Packages that others bring; what is not here is warned of once too often, never refused."""
_WITH: Final = {name: frozenset(brought.split()) for name, brought in _COMES_WITH.items()}


_BY_THEIR_NAMES: Final = (
    "addict av blosc catboost click deepspeed diffusers easydict einops fairseq fire flask ftfy"
    " fvcore gensim gluoncv h5py imgaug insightface ipdb ipywidgets jieba joblib jsonlines kornia librosa lmdb"
    " loguru lxml mmengine mxnet natsort nibabel nltk numba numexpr onnxruntime optax optuna orjson plotly"
    " polars prettytable psutil pydicom pydub pydantic pynndescent pytest ray regex rich sacrebleu"
    " sacremoses sentencepiece shap simplejson skorch soundfile spacy submitit tables tabulate tensorboardX termcolor"
    " thop tiktoken toml toolz torchtext triton ujson unidecode visdom vllm webdataset xformers yacs"
)
"""Packages that are not among those above, with a module of the same name."""
_KNOWN: Final = frozenset(
    name.replace("-", "_")
    for words in (_BY_THEIR_NAMES, *_COMES_WITH, *_COMES_WITH.values())
    for name in words.split()
)
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]{1,100})'")


_NAMED: Final = frozenset(
    canonical(name)
    for words in (_BY_THEIR_NAMES, *_PACKAGES.values(), *_COMES_WITH, *_COMES_WITH.values())
    for name in words.split()
)


def is_known(package: str) -> bool:
    """Whether a package of this name, in its one form, is the one that programs import by it."""
    return package in _NAMED


def missing_line(exception: str) -> str:
    """The line that requirements.txt lacked, by the exception that ended a program.

    "" where it is another exception, and where no package is known to have the module: one that has its name
    may be anybody's.
    """
    found = _NO_MODULE.fullmatch(exception)
    if found is None:
        return ""
    module = found[1]
    if module in _PACKAGES:
        return _PACKAGES[module].split()[0]
    # of a module below another, that one is there
    return canonical(module) if module in _KNOWN else ""


def missing_package(module: str, required: Collection[str]) -> str:
    """The package to name for a module that none of the `required` packages has; "" where one may have it.

    Args:
        module: its dotted name.
        required: names of packages in their one form.
    """
    top = module.partition(".")[0]
    if top == "google":  # packages of many share it
        top = ".".join(module.split(".")[:2])
        if top not in _PACKAGES:
            return ""
    packages = _PACKAGES.get(top, canonical(top)).split()
    likely = {*packages, canonical(top)}
    likely |= {f"{form}{name}" for name in tuple(likely) for form in ("py", "python-")}
    for package in likely:
        begin = f"{package}-"  # cupy-cuda12x, lightgbm-cpu
        if any(
            one == package or one.startswith(begin) or one in _WITH.get(package, ())
            for one in required
        ):
            return ""
    return packages[0]
