"""MLflow's own search over what this process keeps: filters, orders and pages are as its server has them."""

from __future__ import annotations

from nsml._echo._mlflow_rest import Refusal, entries, integer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Facts = Dict[str, Any]


def found_by(
    search: Callable[[List[Any], Facts], Tuple[List[Any], Any]],
    jsons: List[Facts],
    given: Facts,
    key: Callable[[Facts], Any],
) -> Tuple[List[Facts], Facts]:
    """Return the JSON of what MLflow's own search finds, and the token of the next page as JSON.

    Raises:
        Refusal: MLflow cannot read the query.
    """
    by_key = {key(one): one for one in jsons}
    try:
        found, token = search(jsons, given)
    except Exception as error:
        code = getattr(error, "error_code", "")  # an MlflowException
        if code:
            raise Refusal(str(code), str(getattr(error, "message", error))) from None
        raise
    return [by_key[one] for one in found if one in by_key], {
        "next_page_token": token
    } if token else {}


def search_runs(jsons: List[Facts], given: Facts) -> Tuple[List[str], Any]:
    from mlflow.entities import Run
    from mlflow.protos.service_pb2 import Run as Message
    from mlflow.utils.search_utils import SearchUtils

    runs = SearchUtils.filter(_read(Message, Run, jsons), given.get("filter"))
    runs = SearchUtils.sort(runs, entries(given, "order_by"))
    page, token = _page(SearchUtils, runs, given, 1000)
    return [run.info.run_id for run in page], token


def search_experiments(jsons: List[Facts], given: Facts) -> Tuple[List[str], Any]:
    from mlflow.entities import Experiment
    from mlflow.protos.service_pb2 import Experiment as Message
    from mlflow.utils.search_utils import SearchExperimentsUtils, SearchUtils

    order = entries(given, "order_by") or ["creation_time DESC", "experiment_id ASC"]
    found = _read(Message, Experiment, jsons)
    found = SearchExperimentsUtils.filter(found, given.get("filter"))
    page, token = _page(SearchUtils, SearchExperimentsUtils.sort(found, order), given, 1000)
    return [one.experiment_id for one in page], token


def search_models(jsons: List[Facts], given: Facts) -> Tuple[List[str], Any]:
    from mlflow.entities import LoggedModel
    from mlflow.protos.service_pb2 import LoggedModel as Message
    from mlflow.utils.search_utils import SearchLoggedModelsUtils as Utils

    found = _read(Message, LoggedModel, jsons)
    found = Utils.filter_logged_models(found, given.get("filter"), entries(given, "datasets"))
    page, token = _page(Utils, Utils.sort(found, entries(given, "order_by")), given, 100)
    return [one.model_id for one in page], token


def search_registered(jsons: List[Facts], given: Facts) -> Tuple[List[Any], Any]:
    from mlflow.entities.model_registry import RegisteredModel
    from mlflow.protos.model_registry_pb2 import RegisteredModel as Message
    from mlflow.utils.search_utils import SearchModelUtils, SearchUtils

    models = SearchModelUtils.filter(_read(Message, RegisteredModel, jsons), given.get("filter"))
    models = SearchModelUtils.sort(models, _one_order(given))
    page, token = _page(SearchUtils, models, given, 100)
    return [one.name for one in page], token


def search_versions(jsons: List[Facts], given: Facts) -> Tuple[List[Any], Any]:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.protos.model_registry_pb2 import ModelVersion as Message
    from mlflow.utils.search_utils import SearchModelVersionUtils, SearchUtils

    versions = _read(Message, ModelVersion, jsons)
    versions = SearchModelVersionUtils.filter(versions, given.get("filter"))
    versions = SearchModelVersionUtils.sort(versions, _one_order(given))
    page, token = _page(SearchUtils, versions, given, 10_000)
    return [(one.name, int(one.version)) for one in page], token


def _read(message: Any, entity: Any, jsons: List[Facts]) -> List[Any]:
    from mlflow.utils.proto_json_utils import parse_dict

    found = []
    for one in jsons:
        read = message()
        parse_dict(one, read)
        found.append(entity.from_proto(read))
    return found


def _page(utils: Any, found: List[Any], given: Facts, default: int) -> Tuple[List[Any], Any]:
    most = integer(given.get("max_results") or default)
    page, token = utils.paginate(found, given.get("page_token") or None, most)
    return list(page), token


def _one_order(given: Facts) -> Optional[List[Any]]:
    """The registry's requests come with one order in a query, not with a list of them."""
    order = given.get("order_by")
    return [order] if order else None
