"""Generate the Python code of proto/; with --check only say whether it is in step.

The generated code is committed, so that nobody needs the generator to run nsml.
"""

from __future__ import annotations

import filecmp
import sys
import tempfile
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
OPTIONS = "nsml/v1/options.proto"


def generate(target: Path) -> list[Path]:
    """Write the code of every .proto file below `target`; return the files, relative to it."""
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    parsed = target / "parsed.binpb"
    _protoc(
        f"-I{PROTO}",
        f"-I{files('grpc_tools') / '_proto'}",
        "--include_imports",
        "--include_source_info",
        f"--descriptor_set_out={parsed}",
        *sources,
    )
    _drop_option_imports(parsed)
    _protoc(
        f"--descriptor_set_in={parsed}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        f"--grpc_python_out={target}",
        *sources,
    )
    parsed.unlink()
    written = [path for path in target.rglob("*_pb2*") if path.is_file()]
    # A file without a service needs no client: an empty stub only costs an import.
    for path in written:
        if path.name.endswith("_pb2_grpc.py") and "class " not in path.read_text():
            path.unlink()
    return sorted(path.relative_to(target) for path in written if path.exists())


def _protoc(*arguments: str) -> None:
    if protoc.main(["protoc", *arguments]) != 0:
        raise SystemExit("protoc failed")


def _drop_option_imports(parsed: Path) -> None:
    """Have the generated code not import the module of our options; they stay in the descriptors, encoded.

    Only the control plane reads them, and that import costs every other program 2 ms at its start. In edition 2024
    this is `import option`.
    """
    found = FileDescriptorSet.FromString(parsed.read_bytes())
    for file in found.file:
        file.dependency[:] = [name for name in file.dependency if name != OPTIONS]
        _drop_json_names(file.message_type)
    parsed.write_bytes(found.SerializeToString())


def _drop_json_names(messages: Iterable[DescriptorProto]) -> None:
    """Leave out what protoc adds to a set of descriptors, and would then take for ours."""
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        _drop_json_names(message.nested_type)


def generated_in_tree() -> list[Path]:
    """Generated files that the repository holds, relative to its root."""
    folders = {path.parent.relative_to(PROTO) for path in PROTO.rglob("*.proto")}
    return sorted(
        path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).glob("*_pb2*")
    )


def drift(fresh: Path, names: list[Path]) -> list[Path]:
    """Files that are missing, left over or different in the repository."""
    changed = [
        name
        for name in names
        if not (ROOT / name).exists() or not filecmp.cmp(fresh / name, ROOT / name, shallow=False)
    ]
    return changed + [name for name in generated_in_tree() if name not in names]


def main() -> int:
    """Write or check; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        names = generate(fresh)
        changed = drift(fresh, names)
        if "--check" in sys.argv[1:]:
            for name in changed:
                print(f"out of step with proto/: {name} (make generate)", file=sys.stderr)
            return 1 if changed else 0
        for name in changed:
            if name in names:
                (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
                (ROOT / name).write_bytes((fresh / name).read_bytes())
            else:
                (ROOT / name).unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
