"""The access table is complete, and says what this file says: so do the options of the contract that it is read from."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, MethodOptions
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import nsml.v1
from controlplane.access.access_table import TABLE, Row, refusal, row_of
from controlplane.domain.errors import Denied
from controlplane.domain.identity import (
    AnonymousCaller,
    NodeCaller,
    PeerCaller,
    Role,
    User,
    UserCaller,
)
from nsml.v1 import options_pb2

# Written a second time, by hand: who changes the table says so here too.
# a = anybody, u = every user, A = administrators, n = nodes, p = other control planes, j = jump hosts
DECLARED = {
    "grpc.health.v1.Health": {"Check": "aunp", "List": "aunp", "Watch": "aunp"},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": "un"},
    "nsml.v1.AccountService": {
        "GetCaller": "un",
        "CreateUser": "A",
        "ListUsers": "A",
        "DeleteUser": "A",
        "UpdateUser": "A",
        "GetUsage": "u",
        "ListUsage": "A",
        "CreateToken": "u",
        "RevokeToken": "u",
        "CreateJoinToken": "A",
        "JoinNode": "aun",
    },
    "nsml.v1.AgentService": {"Control": "np", "Ingest": "n", "Tunnel": "np"},
    "nsml.v1.TelemetryService": {"ReadTelemetry": "u"},
    "nsml.v1.AuditService": {"ListAuditRows": "A"},
    "nsml.v1.BoardService": {
        "CreateBoard": "u",
        "UpdateBoard": "u",
        "DeleteBoard": "u",
        "GetBoard": "u",
        "ListBoards": "u",
        "ListEntries": "u",
        "WatchBoard": "u",
        "ReevaluateBoard": "u",
    },
    "nsml.v1.BackupService": {"CreateBackup": "A", "GetBackupBlobs": "A"},
    "nsml.v1.CheckpointService": {
        "ListCheckpoints": "un",
        "GetCheckpoint": "un",
        "RemoveCheckpoints": "u",
        "TagCheckpoint": "u",
        "UntagCheckpoint": "u",
        "CommitCheckpoint": "n",
    },
    "nsml.v1.CompetitionService": {
        "CreateCompetition": "u",
        "UpdateCompetition": "u",
        "OpenCompetition": "u",
        "CloseCompetition": "u",
        "DeleteCompetition": "u",
        "GetCompetition": "u",
        "ListCompetitions": "u",
        "OpenCompetitionPage": "u",
        "JoinCompetition": "u",
        "LeaveCompetition": "u",
        "InviteUsers": "u",
        "MergeTeams": "u",
        "UpdateTeam": "u",
        "PickSubmissions": "u",
        "SetBaseline": "u",
        "Announce": "u",
        "RerunWinners": "u",
        "ListStandings": "u",
        "WatchStandings": "u",
        "ExportCompetition": "u",
    },
    "nsml.v1.EnvironmentService": {
        "GetEnvironmentLock": "un",
        "RecordEnvironmentLock": "n",
        "ProposeEnvironmentLock": "n",
        "ListEnvironments": "u",
        "RemoveEnvironment": "u",
        "BuildEnvironment": "u",
        "GetEnvironmentBuild": "u",
    },
    "nsml.v1.ArtifactService": {
        "ListArtifacts": "u",
        "FindArtifact": "n",
        "RemoveArtifacts": "u",
        "CommitArtifact": "n",
    },
    "nsml.v1.MediaService": {"ListMedia": "u", "CommitMedia": "n"},
    "nsml.v1.ContentService": {
        "FindMissingBlobs": "un",
        "PutBlobs": "un",
        "GetBlobs": "un",
        "LocateBlobs": "n",
        "VerifyStorage": "A",
        "RepairStorage": "A",
        "RepairContent": "A",
    },
    "nsml.v1.DatasetService": {
        "CreateDatasetVersion": "u",
        "ListDatasets": "u",
        "GetDataset": "u",
        "ListDatasetVersions": "u",
        "UpdateDataset": "u",
        "TagDatasetVersion": "u",
        "UntagDatasetVersion": "u",
        "RemoveDataset": "u",
        "RestoreDataset": "u",
    },
    "nsml.v1.ProjectService": {
        "CreateProject": "A",
        "GetProject": "u",
        "ListProjects": "u",
        "UpdateProject": "A",
        "DeleteProject": "A",
        "ChangeMembers": "u",
        "GetProjectStorage": "u",
        "ListProjectStorage": "u",
    },
    "nsml.v1.SubmissionService": {
        "CreateSubmission": "u",
        "GetSubmission": "u",
        "ListSubmissions": "u",
        "WatchSubmission": "u",
    },
    "nsml.v1.ViewService": {"OpenView": "u", "ListViews": "u", "StopView": "u"},
    "nsml.v1.WebhookService": {
        "SetWebhook": "u",
        "GetWebhook": "u",
        "RemoveWebhook": "u",
        "TestWebhook": "u",
    },
    "nsml.v1.SshKeyService": {
        "AddSshKey": "u",
        "ListSshKeys": "u",
        "RemoveSshKey": "u",
        "GetJumpHost": "u",
        "GetSshKeyUser": "j",
    },
    "nsml.v1.SecretService": {
        "SetSecret": "u",
        "ListSecrets": "u",
        "RemoveSecret": "u",
        "SetRegistryLogin": "u",
        "ListRegistryLogins": "u",
        "RemoveRegistryLogin": "u",
    },
    "nsml.v1.NodeService": {
        "ListNodes": "u",
        "GetNode": "u",
        "DrainNode": "A",
        "ResumeNode": "A",
        "FenceNode": "A",
        "RemoveNode": "A",
        "PullImage": "u",
        "GetImagePull": "u",
        "RemoveImage": "A",
        "OpenNodeTunnel": "A",
        "GetCluster": "u",
    },
    "nsml.v1.SessionBackupService": {"ReadSessionStreams": "u", "RestoreSession": "u"},
    "nsml.v1.SessionService": {
        "CreateSession": "u",
        "GetSession": "u",
        "ListSessions": "u",
        "WatchSessions": "u",
        "StopSession": "u",
        "RequeueSession": "u",
        "RemoveSession": "u",
        "UpdateSession": "u",
        "ChangeProgram": "u",
        "ReadLogs": "u",
        "SearchLogs": "u",
        "ReadMetrics": "u",
        "ReadSeries": "u",
        "ListMetrics": "u",
        "ExplainSession": "u",
        "ListQueue": "u",
        "OpenTunnel": "uj",
    },
}


def contract_files() -> list[FileDescriptor]:
    modules = [
        importlib.import_module(f"nsml.v1.{found.name}")
        for found in pkgutil.iter_modules(nsml.v1.__path__)
        if found.name.endswith("_pb2")
    ]
    return [module.DESCRIPTOR for module in [*modules, health_pb2, reflection_pb2]]


def methods_of(files: list[FileDescriptor]) -> set[str]:
    return {
        f"/{service.full_name}/{method.name}"
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    }


def letters(row: Row) -> str:
    names = {
        "ANONYMOUS": "a",
        "USER": "u",
        "ADMIN": "A",
        "NODE": "n",
        "PEER": "p",
        "JUMP_HOST": "j",
    }
    return "".join(letter for name, letter in names.items() if name in str(row.doors))


def test_every_method_of_every_service_has_a_row_and_no_row_is_left_over() -> None:
    assert set(TABLE) == methods_of(contract_files())


def test_the_table_says_what_is_declared_here() -> None:
    declared = {f"/{s}/{m}": who for s, rows in DECLARED.items() for m, who in rows.items()}
    assert {method: letters(row) for method, row in TABLE.items()} == declared


def test_every_method_has_its_options() -> None:
    """Callers, and a rule beyond that; and either it only reads, or the audit trail has it."""
    for file in contract_files():
        for service in FileDescriptorProto.FromString(file.serialized_pb).service:
            for method in service.method if file.package == "nsml.v1" else ():
                options, access = method.options, method.options.Extensions[options_pb2.access]
                is_named = (service.name, method.name)
                assert access.callers, is_named
                assert options_pb2.CALLER_UNSPECIFIED not in access.callers, is_named
                assert access.rule.endswith(".") or access.callers == [options_pb2.CALLER_ADMIN], (
                    is_named
                )
                only_reads = options.idempotency_level == options.NO_SIDE_EFFECTS
                assert only_reads != options.HasExtension(options_pb2.audit), is_named


def test_a_method_without_options_is_refused_to_everybody_and_in_the_trail() -> None:
    row = row_of(MethodOptions())
    assert row.change is not None
    admin = UserCaller(user=User(name="root", role=Role.ADMIN))
    for who in (admin, AnonymousCaller(), NodeCaller(node="n"), PeerCaller(member="cp2")):
        assert isinstance(refusal({"/a.B/C": row}, "/a.B/C", who), Denied)


def test_the_leader_is_asked_for_what_only_it_hears() -> None:
    asked = {method for method, row in TABLE.items() if row.prefers_leader}
    assert asked == {
        *(f"/nsml.v1.NodeService/{name}" for name in ("ListNodes", "GetNode", "GetCluster")),
        "/nsml.v1.BoardService/WatchBoard",
        "/nsml.v1.CompetitionService/WatchStandings",
        "/nsml.v1.SubmissionService/WatchSubmission",
    }


@pytest.mark.parametrize("method", sorted(TABLE))
def test_a_method_that_loses_its_row_is_refused_even_to_administrators(method: str) -> None:
    without = {name: row for name, row in TABLE.items() if name != method}
    admin = UserCaller(user=User(name="root", role=Role.ADMIN))
    assert isinstance(refusal(without, method, admin), Denied)
