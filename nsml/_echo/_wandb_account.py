"""What W&B is given where the user has no account: the address of this process's receiver, and a key for it.

Without either W&B refuses to start. The receiver answers what its client asks for, and keeps nothing: the hooks of
`_wandb` have recorded it before.
"""

from __future__ import annotations

import os
import re
import sys
from base64 import b64encode

from nsml._values import is_mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Set, Tuple

    from nsml._echo._http import Request
    from nsml._echo._receiver import Receiver

NO_ACCOUNT = "this session has no W&B account (--secret WANDB_API_KEY gives it one)"
MOST_TEXT_BYTES = 4 << 20
_HOST = "api.wandb.ai"
_DEFAULT_URL = f"https://{_HOST}"
_KEY, _URL, _MODE = "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE"
_IDENTITY = "WANDB_IDENTITY_TOKEN_FILE"
_MARK = "NSML_ECHO_WANDB"
"""A variable with key and address as given: child processes tell them from the user's own by it."""
_NOT_ONLINE = ("offline", "disabled", "dryrun")
_TUNING = {
    # A receiver that is gone is not asked again for hours, which `finish` would wait for.
    "WANDB__FILE_STREAM_RETRY_MAX": "2",
    "WANDB__FILE_STREAM_RETRY_WAIT_MIN_SECONDS": "1",
    "WANDB__FILE_STREAM_RETRY_WAIT_MAX_SECONDS": "2",
    "WANDB__FILE_TRANSFER_RETRY_MAX": "2",
    "WANDB__FILE_TRANSFER_RETRY_WAIT_MIN_SECONDS": "1",
    "WANDB__FILE_TRANSFER_RETRY_WAIT_MAX_SECONDS": "2",
    "WANDB__GRAPHQL_RETRY_MAX": "2",
    "WANDB__GRAPHQL_RETRY_WAIT_MIN_SECONDS": "1",
    "WANDB__GRAPHQL_RETRY_WAIT_MAX_SECONDS": "2",
    # Faults of W&B's client are not sent to its makers by a program without an account.
    "WANDB_ERROR_REPORTING": "false",
}
_MOST_QUERY_BYTES = 16 << 20
_MOST_FILES = 10_000
_OPERATION = re.compile(r"\s*(?:query|mutation)\s+(\w{1,100})")
_VIEWER = re.compile(r"\s*(?:query\s*)?\{\s*viewer\b")
"""The query without a name by which keys are checked."""


class Account:
    """Stands in for the user's account, if there is none, in the environment of this process and its children."""

    def __init__(self) -> None:
        self._given: Dict[str, str] = {}
        self._pid = 0
        """The process in which that was checked: after a fork it is another one."""
        self._url = ""
        self.must_exist: Set[str] = set()
        """Runs that the program resumes with resume="must"."""

    @property
    def is_ours(self) -> bool:
        """Whether W&B has no account of the user's, and is not offline by the user's choice."""
        return bool(self._given)

    def check(self) -> None:
        """Stand in where the user has no account, and no longer where there is one by now."""
        environment = os.environ
        key, _, url = environment.get(_MARK, "").partition(" ")
        mode = environment.get(_MODE, "")
        if (
            environment.get(_KEY, key) != key
            or environment.get(_URL, url) != url
            or environment.get(_IDENTITY)
            or (mode.lower() in _NOT_ONLINE and mode != self._given.get(_MODE))
            or _has_account()
        ):
            self.withdraw()
        elif self._pid != os.getpid() or not self._given:
            self._pid = os.getpid()
            if key and environment.get(_KEY) == key and _is_served(key, url):
                self._given = self._given or {**_TUNING, _KEY: key, _URL: url}
            else:
                self._give()

    def withdraw(self) -> None:
        """Take back what was given by this process or a parent; the user's own values stay."""
        key, _, url = os.environ.pop(_MARK, "").partition(" ")
        given, self._given = self._given, {}
        if key and not given:  # of a parent process
            given = {**_TUNING, _KEY: key, _URL: url}
        for name, value in given.items():
            if os.environ.get(name) == value:
                del os.environ[name]
        if url:
            _forget(url)

    def explicit(self, key: Any, url: Any) -> bool:
        """Return whether key or address, as given to W&B in a call, are the user's own; then withdraw."""
        ours = (self._given.get(_KEY), self._given.get(_URL), _DEFAULT_URL, None, "")
        if key in ours and url in ours:
            return False
        self.withdraw()
        return True

    def _give(self) -> None:
        given = dict(_TUNING)
        try:
            from nsml._echo._receiver import receiver

            one = receiver()
            answers = _Answers(one, self.must_exist)
            one.add("/graphql", answers.query)
            one.add("/files", _dropped)
            one.add("/wandb", _dropped)
            one.add("/wandb/manifest", _manifest)
            given.update({_KEY: one.secret, _URL: one.address()})
            os.environ[_MARK] = f"{given[_KEY]} {given[_URL]}"
        except (OSError, RuntimeError):  # no port, or no thread
            given[_MODE] = "offline"
        for name in _TUNING:
            if name in os.environ:
                del given[name]  # the user's own
        os.environ.update(given)
        self._given = given


class _Answers:
    """Answers GraphQL by the name of the operation, which stays the same while queries change.

    What is unknown is answered with an error: W&B's client takes that, while it ends with a nil pointer for data without
    a field that it expects.
    """

    def __init__(self, served: Receiver, must_exist: Set[str]) -> None:
        self._receiver = served
        self._must_exist = must_exist
        self._artifacts: Dict[str, Any] = {}
        self._answers: Dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "ArtifactByID": self._artifact,
            "ArtifactByIDShort": self._artifact,
            "CreateArtifact": self._created,
            "CreateRunFiles": self._created_files,
            "RunResumeStatus": self._resumed,
            "RunUploadUrls": self._old_files,
            "UpsertBucket": _upserted,
            "UseArtifact": self._used,
        }

    def query(self, request: Request) -> Any:
        """Answer one."""
        from nsml._echo._http import RequestError

        asked = request.body.json(_MOST_QUERY_BYTES)
        query = asked.get("query") if isinstance(asked, dict) else None
        if not isinstance(query, str):
            raise RequestError(400, "no query")
        named = _OPERATION.match(query)
        operation = named[1] if named else "Viewer" if _VIEWER.match(query) else ""
        variables = asked.get("variables")
        return self._answer(operation, variables if is_mapping(variables) else {})

    def _answer(self, operation: str, variables: Mapping[str, Any]) -> Any:
        answer = self._answers.get(operation)
        if answer is not None:
            return {"data": answer(variables)}
        if operation in _CONSTANTS:
            return {"data": _CONSTANTS[operation]}
        if operation.startswith("Probe"):  # what a server can do: nothing that need not be
            return {"data": {}}
        return {"data": None, "errors": [{"message": f"{operation or 'query'}: {NO_ACCOUNT}"}]}

    def _created_files(self, variables: Mapping[str, Any]) -> Any:
        files = [{"name": name, "uploadUrl": url} for name, url in self._upload_urls(variables)]
        run = str(variables.get("run") or "")
        return {"createRunFiles": {"runID": run, "uploadHeaders": [], "files": files}}

    def _old_files(self, variables: Mapping[str, Any]) -> Any:
        nodes = [
            {"node": {"name": name, "url": url, "updatedAt": None}}
            for name, url in self._upload_urls(variables)
        ]
        files = {"uploadHeaders": [], "edges": nodes}
        return {"model": {"bucket": {"id": str(variables.get("run") or ""), "files": files}}}

    def _upload_urls(self, variables: Mapping[str, Any]) -> List[Tuple[str, str]]:
        """Return name and URL of each file."""
        url = self._receiver.url("/wandb")
        files = variables.get("files")
        names = [str(name) for name in files][:_MOST_FILES] if isinstance(files, list) else []
        return [(name, f"{url}/{at}") for at, name in enumerate(names)]

    def _created(self, variables: Mapping[str, Any]) -> Any:
        """Return an artifact with its content in place already: its files are not sent."""
        given: Any = variables.get("input")
        if not is_mapping(given):
            given = variables
        number = len(self._artifacts)
        identity = b64encode(f"Artifact:{number}".encode()).decode()
        entity = str(given.get("entityName") or "nsml")
        project = {
            "id": "UHJvamVjdDox",
            "internalId": "UHJvamVjdDox",
            "name": str(given.get("projectName") or "uncategorized"),
            "entityName": entity,
            "entity": {"name": entity},
        }
        names = given.get("artifactCollectionNames") or [given.get("artifactCollectionName")]
        collection = {
            "__typename": "ArtifactSequence",
            "id": "QXJ0aWZhY3RTZXF1ZW5jZTox",
            "name": str(names[0]),
            "project": project,
            "latestArtifact": {"id": identity, "versionIndex": number},
        }
        aliases = given.get("aliases")
        made = {
            "__typename": "Artifact",
            "id": identity,
            "state": "COMMITTED",
            "artifactSequence": collection,
            "artifactType": {"name": str(given.get("artifactTypeName") or "")},
            "versionIndex": number,
            "description": given.get("description"),
            "metadata": given.get("metadata"),
            "digest": str(given.get("digest") or ""),
            "aliases": [
                {
                    "__typename": "ArtifactAlias",
                    "id": "QXJ0aWZhY3RBbGlhczox",
                    "alias": str(one.get("alias")),
                    "artifactCollection": collection,
                }
                for one in (aliases if isinstance(aliases, list) else [])
                if is_mapping(one)
            ],
            "currentManifest": {"file": {"directUrl": self._receiver.url("/wandb/manifest")}},
            **dict.fromkeys(("historyStep", "updatedAt", "digestAlgorithm", "commitHash")),
            **dict.fromkeys(("size", "fileCount"), 0),
            "createdAt": "2000-01-01T00:00:00Z",
            "tags": [],
            "ttlDurationSeconds": -2,
            "ttlIsInherited": True,
        }
        if number < _MOST_FILES:
            self._artifacts[identity] = made
        return {"createArtifact": {"artifact": made}}

    def _used(self, variables: Mapping[str, Any]) -> Any:
        return {"useArtifact": {"artifact": {"id": str(variables.get("artifactID") or "")}}}

    def _artifact(self, variables: Mapping[str, Any]) -> Any:
        return {"artifact": self._artifacts.get(str(variables.get("id")))}

    def _resumed(self, variables: Mapping[str, Any]) -> Any:
        """Return a run without history where the program insists that it is there, None elsewhere: it begins anew."""
        name = str(variables.get("name") or "")
        if name not in self._must_exist:
            return {"model": None}
        counts = dict.fromkeys(("historyLineCount", "logLineCount", "eventsLineCount"), 0)
        tails = dict.fromkeys(("historyTail", "eventsTail"), '["{}"]')
        texts = {"summaryMetrics": "{}", "config": "{}", "wandbConfig": '{"t":1}'}
        bucket = {"id": name, "name": name, **counts, **tails, **texts, "tags": []}
        return {"model": {"name": "nsml", "bucket": bucket, "entity": {"name": "nsml"}}}


def _upserted(variables: Mapping[str, Any]) -> Any:
    name = str(variables.get("name") or "run")
    entity = {"id": "nsml", "name": str(variables.get("entity") or "nsml")}
    project = str(variables.get("project") or "uncategorized")
    bucket = {
        "id": name,
        "name": name,
        "displayName": str(variables.get("displayName") or name),
        "description": None,
        "config": None,
        "sweepName": None,
        "historyLineCount": 0,
        "project": {"id": "nsml", "name": project, "entity": entity},
    }
    return {"upsertBucket": {"bucket": bucket, "inserted": True}}


_SERVER: Dict[str, Any] = {
    "cliVersionInfo": {"max_cli_version": "99.0.0"},
    "latestLocalVersionInfo": None,
    "features": [],
}
_CONSTANTS: Dict[str, Any] = {
    "Viewer": {
        "viewer": {
            "id": "nsml",
            "entity": "nsml",
            "username": "nsml",
            "email": "",
            "admin": False,
            "flags": "{}",
            "teams": {"edges": []},
        },
        "serverInfo": _SERVER,
    },
    "ServerInfo": {"serverInfo": _SERVER},
    "ServerFeaturesQuery": {"serverInfo": _SERVER},
    "ProbeServerCapabilities": {
        "QueryType": {"fields": [{"name": "serverInfo"}]},
        "MutationType": {"fields": []},
        "ServerInfoType": {"fields": [{"name": "cliVersionInfo"}]},
    },
    "InputFields": {"TypeInfo": {"inputFields": []}},
    "TypeFields": {"TypeInfo": {"fields": []}},
    "RunStoppedStatus": {"project": {"run": {"stopped": False}}},
    "OrganizationCoreWeaveOrganizationID": {"entity": None},
    "NotifyScriptableRunAlert": {"notifyScriptableRunAlert": {"success": True}},
    "ArtifactType": {"project": {"artifact": None}},
}
_MANIFEST = {
    "version": 1,
    "storagePolicy": "wandb-storage-policy-v1",
    "storagePolicyConfig": {},
    "contents": {},
}


def _dropped(request: Request) -> Any:
    """Drop history, logs and files, however long."""
    request.body.skip()
    return {}


def _manifest(_request: Request) -> Any:
    """Return the content of an artifact: nothing."""
    return _MANIFEST


def _is_served(key: str, url: str) -> bool:
    """Return whether the receiver of this process or a parent answers."""
    from nsml._echo._receiver import answers

    return answers(url, key)


def _has_account() -> bool:
    """Return whether W&B finds a key or server in the user's files."""
    home = os.path.expanduser("~")
    folder = os.environ.get("WANDB_CONFIG_DIR") or os.path.join(home, ".config", "wandb")
    for place in (folder, os.path.join(os.environ.get("WANDB_DIR") or ".", "wandb")):
        settings = read_text(os.path.join(place, "settings"))
        if re.search(r"(?m)^\s*(?:base_url|api_key)\s*[=:]\s*\S", settings):
            return True
    names = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    for name in names:
        words = read_text(os.path.expanduser(name)).split()
        if ("machine", _HOST) in zip(words, words[1:]):
            return True
    return False


def read_text(path: str) -> str:
    """Return the beginning of a file; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MOST_TEXT_BYTES)
    except (OSError, ValueError):
        return ""


def _forget(url: str) -> None:
    """Have W&B use its own address, if it has read its settings before the user's key was there."""
    module: Any = sys.modules.get("wandb.sdk.wandb_setup")
    single = getattr(module, "_singleton", None)
    if single is None:
        single = getattr(getattr(module, "_WandbSetup", None), "_instance", None)
    settings: Any = getattr(single, "settings", None)
    if getattr(settings, "base_url", None) != url:
        return
    for name, value in (("base_url", _DEFAULT_URL), ("api_key", None)):
        if hasattr(settings, "model_fields_set"):
            setattr(settings, name, value)
        else:
            settings.update({name: value})
