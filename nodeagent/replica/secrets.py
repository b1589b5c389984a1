"""Secrets of a replica: held from its order to its start, and never shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.engine.pulls import Login

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsml.v1 import agents_pb2 as pb
    from nsml.v1 import sessions_pb2 as sessions


class GivenSecrets:
    """Variables of one program, and logins for its image; `forget` clears them."""

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
        """Values by name of the variable."""
        return self._values

    def problem(self, uses: Iterable[sessions.SecretUse]) -> str:
        """Return why secrets of the session are missing; empty if none are."""
        for use in uses:
            if use.variable not in self._values:
                return self._problems.get(use.variable, f"secret {use.name} did not come with it")
        return ""

    def forget(self) -> None:
        """Clear them: the program has them, or never starts."""
        self._values.clear()
        self.logins.clear()  # the preparation has this dict

    def __repr__(self) -> str:
        return f"GivenSecrets({sorted(self._values)})"


def taken_from(assignment: pb.Assignment) -> GivenSecrets:
    """Move the secrets out of an assignment, so that the rest may be written to disk."""
    given = GivenSecrets(assignment.secrets, assignment.registry_logins)
    assignment.ClearField("secrets")
    assignment.ClearField("registry_logins")
    return given


def logins_by_registry(logins: Iterable[pb.RegistryLogin]) -> dict[str, Login]:
    """Return a user's logins by registry."""
    return {
        one.registry: Login(
            registry=one.registry, user=one.user, password=one.password, version=one.version
        )
        for one in logins
    }
