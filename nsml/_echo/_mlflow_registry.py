"""MLflow's model registry within one process, so that a program that registers its models runs as with MLflow's own."""

from __future__ import annotations

from nsml._echo._mlflow_rest import (
    Refusal,
    entries,
    now,
    pairs,
    pairs_json,
    put,
    text,
)
from nsml._echo._mlflow_search import found_by, search_registered, search_versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Tuple

    Facts = Dict[str, Any]

_MOST_MODELS = 1_000
_MOST_VERSIONS = 10_000


class Registry:
    """Registered models and their versions."""

    ENDPOINTS = (
        ("POST", "registered-models/create", "create_model"),
        ("GET", "registered-models/get", "model"),
        ("PATCH", "registered-models/update", "update_model"),
        ("POST", "registered-models/rename", "rename_model"),
        ("DELETE", "registered-models/delete", "delete_model"),
        ("GET", "registered-models/search", "search_models"),
        ("POST", "registered-models/get-latest-versions", "latest_versions"),
        ("POST", "registered-models/set-tag", "tag_model"),
        ("DELETE", "registered-models/delete-tag", "untag_model"),
        ("POST", "registered-models/alias", "set_alias"),
        ("DELETE", "registered-models/alias", "delete_alias"),
        ("GET", "registered-models/alias", "version_by_alias"),
        ("POST", "model-versions/create", "create_version"),
        ("GET", "model-versions/get", "version"),
        ("PATCH", "model-versions/update", "update_version"),
        ("DELETE", "model-versions/delete", "delete_version"),
        ("GET", "model-versions/search", "search_versions"),
        ("GET", "model-versions/get-download-uri", "download_uri"),
        ("POST", "model-versions/transition-stage", "move_version"),
        ("POST", "model-versions/set-tag", "tag_version"),
        ("DELETE", "model-versions/delete-tag", "untag_version"),
    )

    def __init__(self) -> None:
        self._models: Dict[str, Facts] = {}

    # Models.

    def create_model(self, given: Facts) -> Facts:
        name = text(given, "name")
        if not name:
            raise Refusal("INVALID_PARAMETER_VALUE", "a registered model needs a name")
        if name in self._models:
            raise Refusal(
                "RESOURCE_ALREADY_EXISTS", f"Registered Model (name={name}) already exists."
            )
        if len(self._models) >= _MOST_MODELS:
            raise Refusal("RESOURCE_EXHAUSTED", f"more than {_MOST_MODELS} registered models")
        self._models[name] = {
            "name": name,
            "creation_timestamp": now(),
            "last_updated_timestamp": now(),
            "description": text(given, "description"),
            "tags": dict(pairs(given, "tags")),
            "aliases": {},
            "versions": {},
            "last": 0,
        }
        return self.model(given)

    def model(self, given: Facts) -> Facts:
        return {"registered_model": _model_json(self._model(given))}

    def update_model(self, given: Facts) -> Facts:
        self._model(given)["description"] = text(given, "description")
        return self.model(given)

    def rename_model(self, given: Facts) -> Facts:
        model, name = self._model(given), text(given, "new_name")
        if not name or name in self._models:
            raise Refusal("RESOURCE_ALREADY_EXISTS", f"no new name: {name[:200]!r}")
        del self._models[model["name"]]
        self._models[name] = model
        for one in (model, *model["versions"].values()):
            one["name"] = name
        return self.model({"name": name})

    def delete_model(self, given: Facts) -> None:
        del self._models[self._model(given)["name"]]

    def search_models(self, given: Facts) -> Facts:
        jsons = [_model_json(one) for one in self._models.values()]
        found, token = found_by(search_registered, jsons, given, lambda one: one["name"])
        return {"registered_models": found, **token}

    def latest_versions(self, given: Facts) -> Facts:
        model, stages = self._model(given), [str(one).lower() for one in entries(given, "stages")]
        latest: Dict[str, Facts] = {}
        for one in model["versions"].values():
            latest[one["current_stage"]] = one
        return {
            "model_versions": [
                _version_json(model, one)
                for stage, one in latest.items()
                if not stages or stage.lower() in stages
            ]
        }

    def tag_model(self, given: Facts) -> None:
        put(self._model(given)["tags"], text(given, "key"), text(given, "value"))

    def untag_model(self, given: Facts) -> None:
        self._model(given)["tags"].pop(text(given, "key"), None)

    def set_alias(self, given: Facts) -> None:
        model, version = self._found(given)
        put(model["aliases"], text(given, "alias"), version["version"])

    def delete_alias(self, given: Facts) -> None:
        self._model(given)["aliases"].pop(text(given, "alias"), None)

    def version_by_alias(self, given: Facts) -> Facts:
        model, alias = self._model(given), text(given, "alias")
        if alias not in model["aliases"]:
            raise Refusal("INVALID_PARAMETER_VALUE", f"Registered model alias {alias} not found.")
        return self.version({"name": model["name"], "version": model["aliases"][alias]})

    # Versions.

    def create_version(self, given: Facts) -> Facts:
        model = self._model(given)
        if len(model["versions"]) >= _MOST_VERSIONS:
            raise Refusal("RESOURCE_EXHAUSTED", f"more than {_MOST_VERSIONS} versions")
        model["last"] += 1
        number = str(model["last"])
        model["versions"][number] = {
            "name": model["name"],
            "version": number,
            "creation_timestamp": now(),
            "last_updated_timestamp": now(),
            "current_stage": "None",
            "description": text(given, "description"),
            "source": text(given, "source"),
            "run_id": text(given, "run_id"),
            "run_link": text(given, "run_link"),
            "model_id": text(given, "model_id"),
            "status": "READY",
            "tags": dict(pairs(given, "tags")),
        }
        return self.version({"name": model["name"], "version": number})

    def version(self, given: Facts) -> Facts:
        return {"model_version": _version_json(*self._found(given))}

    def update_version(self, given: Facts) -> Facts:
        self._found(given)[1]["description"] = text(given, "description")
        return self.version(given)

    def delete_version(self, given: Facts) -> None:
        model, version = self._found(given)
        del model["versions"][version["version"]]
        kept = {key: one for key, one in model["aliases"].items() if one != version["version"]}
        model["aliases"] = kept

    def search_versions(self, given: Facts) -> Facts:
        jsons = [
            _version_json(model, one)
            for model in self._models.values()
            for one in model["versions"].values()
        ]
        found, token = found_by(
            search_versions, jsons, given, lambda one: (one["name"], int(one["version"]))
        )
        return {"model_versions": found, **token}

    def download_uri(self, given: Facts) -> Facts:
        return {"artifact_uri": self._found(given)[1]["source"]}

    def move_version(self, given: Facts) -> Facts:
        model, version = self._found(given)
        names = {one.lower(): one for one in ("None", "Staging", "Production", "Archived")}
        stage = names.get(text(given, "stage").lower())
        if stage is None:
            raise Refusal("INVALID_PARAMETER_VALUE", "Invalid Model Version stage")
        if given.get("archive_existing_versions") is True:
            for one in model["versions"].values():
                if one["current_stage"] == stage:
                    one["current_stage"] = "Archived"
        version["current_stage"] = stage
        return self.version(given)

    def tag_version(self, given: Facts) -> None:
        put(self._found(given)[1]["tags"], text(given, "key"), text(given, "value"))

    def untag_version(self, given: Facts) -> None:
        self._found(given)[1]["tags"].pop(text(given, "key"), None)

    def _model(self, given: Facts) -> Facts:
        name = text(given, "name")
        if name not in self._models:
            raise Refusal(
                "RESOURCE_DOES_NOT_EXIST", f"Registered Model with name={name[:200]} not found"
            )
        return self._models[name]

    def _found(self, given: Facts) -> Tuple[Facts, Facts]:
        model = self._model(given)
        number = text(given, "version")
        if number not in model["versions"]:
            raise Refusal(
                "RESOURCE_DOES_NOT_EXIST",
                f"Model Version (name={model['name']}, version={number[:50]}) not found",
            )
        return model, model["versions"][number]


def _model_json(model: Facts) -> Facts:
    latest: Dict[str, Facts] = {}
    for one in model["versions"].values():
        latest[one["current_stage"]] = one
    return {
        **{key: value for key, value in model.items() if key not in ("versions", "last")},
        "tags": pairs_json(model["tags"]),
        "aliases": [{"alias": key, "version": value} for key, value in model["aliases"].items()],
        "latest_versions": [_version_json(model, one) for one in latest.values()],
    }


def _version_json(model: Facts, version: Facts) -> Facts:
    aliases = [key for key, value in model["aliases"].items() if value == version["version"]]
    return {**version, "tags": pairs_json(version["tags"]), "aliases": aliases}
