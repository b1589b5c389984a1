import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from nsml.v1 import accounts_pb2 as _accounts_pb2
from nsml.v1 import sessions_pb2 as _sessions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Quota(_message.Message):
    __slots__ = ("gpu_thousandths", "cpu_thousandths", "memory_bytes", "sessions")
    GPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    CPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    gpu_thousandths: int
    cpu_thousandths: int
    memory_bytes: int
    sessions: int
    def __init__(self, gpu_thousandths: _Optional[int] = ..., cpu_thousandths: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., sessions: _Optional[int] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ("gpu_seconds", "period_days", "anchor")
    GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PERIOD_DAYS_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    gpu_seconds: float
    period_days: int
    anchor: _timestamp_pb2.Timestamp
    def __init__(self, gpu_seconds: _Optional[float] = ..., period_days: _Optional[int] = ..., anchor: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ProjectSettings(_message.Message):
    __slots__ = ("owner", "quota", "member_quota", "budget", "weight", "most_priority", "keep_checkpoints", "kept_bytes", "keep_files")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    MEMBER_QUOTA_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MOST_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    KEEP_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEEP_FILES_FIELD_NUMBER: _ClassVar[int]
    owner: str
    quota: Quota
    member_quota: Quota
    budget: Budget
    weight: float
    most_priority: _sessions_pb2.Priority
    keep_checkpoints: str
    kept_bytes: int
    keep_files: str
    def __init__(self, owner: _Optional[str] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ..., member_quota: _Optional[_Union[Quota, _Mapping]] = ..., budget: _Optional[_Union[Budget, _Mapping]] = ..., weight: _Optional[float] = ..., most_priority: _Optional[_Union[_sessions_pb2.Priority, str]] = ..., keep_checkpoints: _Optional[str] = ..., kept_bytes: _Optional[int] = ..., keep_files: _Optional[str] = ...) -> None: ...

class ProjectUsage(_message.Message):
    __slots__ = ("gpu_thousandths", "cpu_thousandths", "memory_bytes", "sessions", "gpu_seconds", "since", "until", "share")
    GPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    CPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    gpu_thousandths: int
    cpu_thousandths: int
    memory_bytes: int
    sessions: int
    gpu_seconds: float
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    share: _sessions_pb2.FairShare
    def __init__(self, gpu_thousandths: _Optional[int] = ..., cpu_thousandths: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., sessions: _Optional[int] = ..., gpu_seconds: _Optional[float] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., share: _Optional[_Union[_sessions_pb2.FairShare, _Mapping]] = ...) -> None: ...

class MemberUsage(_message.Message):
    __slots__ = ("user", "gpu_thousandths", "sessions")
    USER_FIELD_NUMBER: _ClassVar[int]
    GPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    user: str
    gpu_thousandths: int
    sessions: int
    def __init__(self, user: _Optional[str] = ..., gpu_thousandths: _Optional[int] = ..., sessions: _Optional[int] = ...) -> None: ...

class Project(_message.Message):
    __slots__ = ("name", "created_at", "settings", "members", "member_count", "usage")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    created_at: _timestamp_pb2.Timestamp
    settings: ProjectSettings
    members: _containers.RepeatedScalarFieldContainer[str]
    member_count: int
    usage: ProjectUsage
    def __init__(self, name: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., settings: _Optional[_Union[ProjectSettings, _Mapping]] = ..., members: _Optional[_Iterable[str]] = ..., member_count: _Optional[int] = ..., usage: _Optional[_Union[ProjectUsage, _Mapping]] = ...) -> None: ...

class CreateProjectRequest(_message.Message):
    __slots__ = ("name", "settings", "members")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: ProjectSettings
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[ProjectSettings, _Mapping]] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateProjectResponse(_message.Message):
    __slots__ = ("project",)
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    project: Project
    def __init__(self, project: _Optional[_Union[Project, _Mapping]] = ...) -> None: ...

class GetProjectRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetProjectResponse(_message.Message):
    __slots__ = ("project", "holders", "sessions", "hidden_sessions")
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    project: Project
    holders: _containers.RepeatedCompositeFieldContainer[MemberUsage]
    sessions: _containers.RepeatedScalarFieldContainer[str]
    hidden_sessions: int
    def __init__(self, project: _Optional[_Union[Project, _Mapping]] = ..., holders: _Optional[_Iterable[_Union[MemberUsage, _Mapping]]] = ..., sessions: _Optional[_Iterable[str]] = ..., hidden_sessions: _Optional[int] = ...) -> None: ...

class ListProjectsRequest(_message.Message):
    __slots__ = ("page_size", "cursor")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    cursor: str
    def __init__(self, page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListProjectsResponse(_message.Message):
    __slots__ = ("projects", "next_cursor")
    PROJECTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    projects: _containers.RepeatedCompositeFieldContainer[Project]
    next_cursor: str
    def __init__(self, projects: _Optional[_Iterable[_Union[Project, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class UpdateProjectRequest(_message.Message):
    __slots__ = ("name", "settings", "without_budget")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_BUDGET_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: ProjectSettings
    without_budget: bool
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[ProjectSettings, _Mapping]] = ..., without_budget: _Optional[bool] = ...) -> None: ...

class UpdateProjectResponse(_message.Message):
    __slots__ = ("project",)
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    project: Project
    def __init__(self, project: _Optional[_Union[Project, _Mapping]] = ...) -> None: ...

class DeleteProjectRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteProjectResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChangeMembersRequest(_message.Message):
    __slots__ = ("name", "add", "remove")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    add: _containers.RepeatedScalarFieldContainer[str]
    remove: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., add: _Optional[_Iterable[str]] = ..., remove: _Optional[_Iterable[str]] = ...) -> None: ...

class ChangeMembersResponse(_message.Message):
    __slots__ = ("project", "unchanged")
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    project: Project
    unchanged: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, project: _Optional[_Union[Project, _Mapping]] = ..., unchanged: _Optional[_Iterable[str]] = ...) -> None: ...

class ProjectStorage(_message.Message):
    __slots__ = ("project", "usage", "users", "is_uncounted")
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    IS_UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    project: str
    usage: _accounts_pb2.Usage
    users: _containers.RepeatedCompositeFieldContainer[StoredByUser]
    is_uncounted: bool
    def __init__(self, project: _Optional[str] = ..., usage: _Optional[_Union[_accounts_pb2.Usage, _Mapping]] = ..., users: _Optional[_Iterable[_Union[StoredByUser, _Mapping]]] = ..., is_uncounted: _Optional[bool] = ...) -> None: ...

class StoredByUser(_message.Message):
    __slots__ = ("user", "bytes")
    USER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    user: str
    bytes: int
    def __init__(self, user: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class GetProjectStorageRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetProjectStorageResponse(_message.Message):
    __slots__ = ("storage",)
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    storage: ProjectStorage
    def __init__(self, storage: _Optional[_Union[ProjectStorage, _Mapping]] = ...) -> None: ...

class ListProjectStorageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListProjectStorageResponse(_message.Message):
    __slots__ = ("storage",)
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    storage: _containers.RepeatedCompositeFieldContainer[ProjectStorage]
    def __init__(self, storage: _Optional[_Iterable[_Union[ProjectStorage, _Mapping]]] = ...) -> None: ...
