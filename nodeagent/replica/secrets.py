"""What a replica is given in secret: held from its order to its start, and shown by nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.engine.pulls import Login

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsml.v1 import agents_pb2 as pb
    from nsml.v1 import sessions_pb2 as sessions


class GivenSecrets:
    """Variables of one program, and logins for its image; nothing is left of them after `forget`."""

    def __init__(
        self, values: Iterable[pb.SecretValue] = (), logins: Iterable[pb.RegistryLogin] = ()
    ) -> None:
        self.logins = logins_by_registry(logins)
        self._values: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        for one in values:
            if one.problem:
                self._problems[one.variable] = one.problem
            else:
                self._values[one.variable] = one.value

    @property
    def values(self) -> Mapping[str, str]:
        """By name of the variable."""
        return self._values

    def problem(self, uses: Iterable[sessions.SecretUse]) -> str:
        """Why the program cannot be given all that its session uses; empty when it can."""
        for use in uses:
            if use.variable not in self._values:
                return self._problems.get(use.variable, f"secret {use.name} did not come with it")
        return ""

    def forget(self) -> None:
        """The program has them, or will never have them."""
        self._values.clear()
        self.logins.clear()  # whoever prepares it has this one

    def __repr__(self) -> str:
        return f"GivenSecrets({sorted(self._values)})"


def taken_from(assignment: pb.Assignment) -> GivenSecrets:
    """The secrets of an assignment, which has none any more: what is left may be written down."""
    given = GivenSecrets(assignment.secrets, assignment.registry_logins)
    assignment.ClearField("secrets")
    assignment.ClearField("registry_logins")
    return given


def logins_by_registry(logins: Iterable[pb.RegistryLogin]) -> dict[str, Login]:
    """A user's logins."""
    return {
        one.registry: Login(
            registry=one.registry, user=one.user, password=one.password, version=one.version
        )
        for one in logins
    }
