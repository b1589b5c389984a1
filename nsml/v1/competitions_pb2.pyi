import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from nsml.v1 import boards_pb2 as _boards_pb2
from nsml.v1 import resources_pb2 as _resources_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CompetitionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPETITION_STATE_UNSPECIFIED: _ClassVar[CompetitionState]
    COMPETITION_STATE_DRAFT: _ClassVar[CompetitionState]
    COMPETITION_STATE_OPEN: _ClassVar[CompetitionState]
    COMPETITION_STATE_CLOSED: _ClassVar[CompetitionState]
COMPETITION_STATE_UNSPECIFIED: CompetitionState
COMPETITION_STATE_DRAFT: CompetitionState
COMPETITION_STATE_OPEN: CompetitionState
COMPETITION_STATE_CLOSED: CompetitionState

class Phase(_message.Message):
    __slots__ = ("name", "starts_at", "ends_at", "dataset", "limit", "public_score", "advance", "picks", "is_final", "is_not_held", "direction")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STARTS_AT_FIELD_NUMBER: _ClassVar[int]
    ENDS_AT_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_SCORE_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_FIELD_NUMBER: _ClassVar[int]
    PICKS_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    IS_NOT_HELD_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    starts_at: _timestamp_pb2.Timestamp
    ends_at: _timestamp_pb2.Timestamp
    dataset: str
    limit: _boards_pb2.SubmissionLimit
    public_score: _boards_pb2.PublicScore
    advance: int
    picks: int
    is_final: bool
    is_not_held: bool
    direction: _boards_pb2.ScoreDirection
    def __init__(self, name: _Optional[str] = ..., starts_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ends_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., dataset: _Optional[str] = ..., limit: _Optional[_Union[_boards_pb2.SubmissionLimit, _Mapping]] = ..., public_score: _Optional[_Union[_boards_pb2.PublicScore, str]] = ..., advance: _Optional[int] = ..., picks: _Optional[int] = ..., is_final: _Optional[bool] = ..., is_not_held: _Optional[bool] = ..., direction: _Optional[_Union[_boards_pb2.ScoreDirection, str]] = ...) -> None: ...

class CompetitionSettings(_message.Message):
    __slots__ = ("title", "description", "phases", "by_invitation", "team_size", "mergers_until", "gpu_thousandths", "visibility")
    TITLE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    BY_INVITATION_FIELD_NUMBER: _ClassVar[int]
    TEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    MERGERS_UNTIL_FIELD_NUMBER: _ClassVar[int]
    GPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    title: str
    description: str
    phases: _containers.RepeatedCompositeFieldContainer[Phase]
    by_invitation: bool
    team_size: int
    mergers_until: _timestamp_pb2.Timestamp
    gpu_thousandths: int
    visibility: _resources_pb2.Visibility
    def __init__(self, title: _Optional[str] = ..., description: _Optional[str] = ..., phases: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ..., by_invitation: _Optional[bool] = ..., team_size: _Optional[int] = ..., mergers_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., gpu_thousandths: _Optional[int] = ..., visibility: _Optional[_Union[_resources_pb2.Visibility, str]] = ...) -> None: ...

class Competition(_message.Message):
    __slots__ = ("owner", "name", "settings", "state", "created_at", "team_count", "submission_count", "phase")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    TEAM_COUNT_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    owner: str
    name: str
    settings: CompetitionSettings
    state: CompetitionState
    created_at: _timestamp_pb2.Timestamp
    team_count: int
    submission_count: int
    phase: str
    def __init__(self, owner: _Optional[str] = ..., name: _Optional[str] = ..., settings: _Optional[_Union[CompetitionSettings, _Mapping]] = ..., state: _Optional[_Union[CompetitionState, str]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., team_count: _Optional[int] = ..., submission_count: _Optional[int] = ..., phase: _Optional[str] = ...) -> None: ...

class Team(_message.Message):
    __slots__ = ("name", "members", "invited", "merge_requests", "disqualified", "submissions", "next_at", "picks", "submissions_left")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    INVITED_FIELD_NUMBER: _ClassVar[int]
    MERGE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DISQUALIFIED_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_FIELD_NUMBER: _ClassVar[int]
    PICKS_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_LEFT_FIELD_NUMBER: _ClassVar[int]
    name: str
    members: _containers.RepeatedScalarFieldContainer[str]
    invited: _containers.RepeatedScalarFieldContainer[str]
    merge_requests: _containers.RepeatedScalarFieldContainer[str]
    disqualified: str
    submissions: int
    next_at: _timestamp_pb2.Timestamp
    picks: _containers.RepeatedScalarFieldContainer[str]
    submissions_left: int
    def __init__(self, name: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ..., invited: _Optional[_Iterable[str]] = ..., merge_requests: _Optional[_Iterable[str]] = ..., disqualified: _Optional[str] = ..., submissions: _Optional[int] = ..., next_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., picks: _Optional[_Iterable[str]] = ..., submissions_left: _Optional[int] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("rank", "rank_before", "team", "members", "score", "private_score", "submissions", "submitted_at", "gpu_seconds", "is_own", "is_baseline", "goes_on", "disqualified", "public_rank", "rerun", "trend")
    RANK_FIELD_NUMBER: _ClassVar[int]
    RANK_BEFORE_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_SCORE_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IS_OWN_FIELD_NUMBER: _ClassVar[int]
    IS_BASELINE_FIELD_NUMBER: _ClassVar[int]
    GOES_ON_FIELD_NUMBER: _ClassVar[int]
    DISQUALIFIED_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_RANK_FIELD_NUMBER: _ClassVar[int]
    RERUN_FIELD_NUMBER: _ClassVar[int]
    TREND_FIELD_NUMBER: _ClassVar[int]
    rank: int
    rank_before: int
    team: str
    members: _containers.RepeatedScalarFieldContainer[str]
    score: float
    private_score: float
    submissions: int
    submitted_at: _timestamp_pb2.Timestamp
    gpu_seconds: float
    is_own: bool
    is_baseline: bool
    goes_on: bool
    disqualified: str
    public_rank: int
    rerun: str
    trend: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, rank: _Optional[int] = ..., rank_before: _Optional[int] = ..., team: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ..., score: _Optional[float] = ..., private_score: _Optional[float] = ..., submissions: _Optional[int] = ..., submitted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., gpu_seconds: _Optional[float] = ..., is_own: _Optional[bool] = ..., is_baseline: _Optional[bool] = ..., goes_on: _Optional[bool] = ..., disqualified: _Optional[str] = ..., public_rank: _Optional[int] = ..., rerun: _Optional[str] = ..., trend: _Optional[_Iterable[float]] = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("text", "at")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    text: str
    at: _timestamp_pb2.Timestamp
    def __init__(self, text: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class PhaseStatistics(_message.Message):
    __slots__ = ("phase", "users", "models", "mean_models", "most_models", "under_five", "submissions", "mean_submissions", "most_submissions", "gpu_seconds")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    MEAN_MODELS_FIELD_NUMBER: _ClassVar[int]
    MOST_MODELS_FIELD_NUMBER: _ClassVar[int]
    UNDER_FIVE_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    MEAN_SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    MOST_SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    phase: str
    users: int
    models: int
    mean_models: float
    most_models: int
    under_five: int
    submissions: int
    mean_submissions: float
    most_submissions: int
    gpu_seconds: float
    def __init__(self, phase: _Optional[str] = ..., users: _Optional[int] = ..., models: _Optional[int] = ..., mean_models: _Optional[float] = ..., most_models: _Optional[int] = ..., under_five: _Optional[int] = ..., submissions: _Optional[int] = ..., mean_submissions: _Optional[float] = ..., most_submissions: _Optional[int] = ..., gpu_seconds: _Optional[float] = ...) -> None: ...

class CreateCompetitionRequest(_message.Message):
    __slots__ = ("name", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: CompetitionSettings
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[CompetitionSettings, _Mapping]] = ...) -> None: ...

class CreateCompetitionResponse(_message.Message):
    __slots__ = ("competition",)
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    competition: Competition
    def __init__(self, competition: _Optional[_Union[Competition, _Mapping]] = ...) -> None: ...

class UpdateCompetitionRequest(_message.Message):
    __slots__ = ("competition", "settings")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    competition: str
    settings: CompetitionSettings
    def __init__(self, competition: _Optional[str] = ..., settings: _Optional[_Union[CompetitionSettings, _Mapping]] = ...) -> None: ...

class UpdateCompetitionResponse(_message.Message):
    __slots__ = ("competition",)
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    competition: Competition
    def __init__(self, competition: _Optional[_Union[Competition, _Mapping]] = ...) -> None: ...

class OpenCompetitionRequest(_message.Message):
    __slots__ = ("competition",)
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    competition: str
    def __init__(self, competition: _Optional[str] = ...) -> None: ...

class OpenCompetitionResponse(_message.Message):
    __slots__ = ("competition",)
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    competition: Competition
    def __init__(self, competition: _Optional[_Union[Competition, _Mapping]] = ...) -> None: ...

class CloseCompetitionRequest(_message.Message):
    __slots__ = ("competition", "phase")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    competition: str
    phase: str
    def __init__(self, competition: _Optional[str] = ..., phase: _Optional[str] = ...) -> None: ...

class CloseCompetitionResponse(_message.Message):
    __slots__ = ("competition",)
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    competition: Competition
    def __init__(self, competition: _Optional[_Union[Competition, _Mapping]] = ...) -> None: ...

class DeleteCompetitionRequest(_message.Message):
    __slots__ = ("competition",)
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    competition: str
    def __init__(self, competition: _Optional[str] = ...) -> None: ...

class DeleteCompetitionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCompetitionRequest(_message.Message):
    __slots__ = ("competition",)
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    competition: str
    def __init__(self, competition: _Optional[str] = ...) -> None: ...

class GetCompetitionResponse(_message.Message):
    __slots__ = ("competition", "team", "announcements", "invitations", "may_change", "why_not", "statistics", "teams", "page", "invited")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCEMENTS_FIELD_NUMBER: _ClassVar[int]
    INVITATIONS_FIELD_NUMBER: _ClassVar[int]
    MAY_CHANGE_FIELD_NUMBER: _ClassVar[int]
    WHY_NOT_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    TEAMS_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    INVITED_FIELD_NUMBER: _ClassVar[int]
    competition: Competition
    team: Team
    announcements: _containers.RepeatedCompositeFieldContainer[Announcement]
    invitations: _containers.RepeatedScalarFieldContainer[str]
    may_change: bool
    why_not: str
    statistics: _containers.RepeatedCompositeFieldContainer[PhaseStatistics]
    teams: _containers.RepeatedCompositeFieldContainer[Team]
    page: str
    invited: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, competition: _Optional[_Union[Competition, _Mapping]] = ..., team: _Optional[_Union[Team, _Mapping]] = ..., announcements: _Optional[_Iterable[_Union[Announcement, _Mapping]]] = ..., invitations: _Optional[_Iterable[str]] = ..., may_change: _Optional[bool] = ..., why_not: _Optional[str] = ..., statistics: _Optional[_Iterable[_Union[PhaseStatistics, _Mapping]]] = ..., teams: _Optional[_Iterable[_Union[Team, _Mapping]]] = ..., page: _Optional[str] = ..., invited: _Optional[_Iterable[str]] = ...) -> None: ...

class ListCompetitionsRequest(_message.Message):
    __slots__ = ("page_size", "cursor")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    cursor: str
    def __init__(self, page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListCompetitionsResponse(_message.Message):
    __slots__ = ("competitions", "next_cursor")
    COMPETITIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    competitions: _containers.RepeatedCompositeFieldContainer[Competition]
    next_cursor: str
    def __init__(self, competitions: _Optional[_Iterable[_Union[Competition, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class OpenCompetitionPageRequest(_message.Message):
    __slots__ = ("competition",)
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    competition: str
    def __init__(self, competition: _Optional[str] = ...) -> None: ...

class OpenCompetitionPageResponse(_message.Message):
    __slots__ = ("url",)
    URL_FIELD_NUMBER: _ClassVar[int]
    url: str
    def __init__(self, url: _Optional[str] = ...) -> None: ...

class JoinCompetitionRequest(_message.Message):
    __slots__ = ("competition", "team")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    competition: str
    team: str
    def __init__(self, competition: _Optional[str] = ..., team: _Optional[str] = ...) -> None: ...

class JoinCompetitionResponse(_message.Message):
    __slots__ = ("team",)
    TEAM_FIELD_NUMBER: _ClassVar[int]
    team: Team
    def __init__(self, team: _Optional[_Union[Team, _Mapping]] = ...) -> None: ...

class LeaveCompetitionRequest(_message.Message):
    __slots__ = ("competition",)
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    competition: str
    def __init__(self, competition: _Optional[str] = ...) -> None: ...

class LeaveCompetitionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InviteUsersRequest(_message.Message):
    __slots__ = ("competition", "users", "into_competition")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    INTO_COMPETITION_FIELD_NUMBER: _ClassVar[int]
    competition: str
    users: _containers.RepeatedScalarFieldContainer[str]
    into_competition: bool
    def __init__(self, competition: _Optional[str] = ..., users: _Optional[_Iterable[str]] = ..., into_competition: _Optional[bool] = ...) -> None: ...

class InviteUsersResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MergeTeamsRequest(_message.Message):
    __slots__ = ("competition", "team", "name")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    competition: str
    team: str
    name: str
    def __init__(self, competition: _Optional[str] = ..., team: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class MergeTeamsResponse(_message.Message):
    __slots__ = ("team", "is_merged")
    TEAM_FIELD_NUMBER: _ClassVar[int]
    IS_MERGED_FIELD_NUMBER: _ClassVar[int]
    team: Team
    is_merged: bool
    def __init__(self, team: _Optional[_Union[Team, _Mapping]] = ..., is_merged: _Optional[bool] = ...) -> None: ...

class UpdateTeamRequest(_message.Message):
    __slots__ = ("competition", "team", "disqualified")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    DISQUALIFIED_FIELD_NUMBER: _ClassVar[int]
    competition: str
    team: str
    disqualified: str
    def __init__(self, competition: _Optional[str] = ..., team: _Optional[str] = ..., disqualified: _Optional[str] = ...) -> None: ...

class UpdateTeamResponse(_message.Message):
    __slots__ = ("team",)
    TEAM_FIELD_NUMBER: _ClassVar[int]
    team: Team
    def __init__(self, team: _Optional[_Union[Team, _Mapping]] = ...) -> None: ...

class PickSubmissionsRequest(_message.Message):
    __slots__ = ("competition", "phase", "submissions")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    competition: str
    phase: str
    submissions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, competition: _Optional[str] = ..., phase: _Optional[str] = ..., submissions: _Optional[_Iterable[str]] = ...) -> None: ...

class PickSubmissionsResponse(_message.Message):
    __slots__ = ("team",)
    TEAM_FIELD_NUMBER: _ClassVar[int]
    team: Team
    def __init__(self, team: _Optional[_Union[Team, _Mapping]] = ...) -> None: ...

class SetBaselineRequest(_message.Message):
    __slots__ = ("competition", "submission", "label")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    competition: str
    submission: str
    label: str
    def __init__(self, competition: _Optional[str] = ..., submission: _Optional[str] = ..., label: _Optional[str] = ...) -> None: ...

class SetBaselineResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AnnounceRequest(_message.Message):
    __slots__ = ("competition", "text")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    competition: str
    text: str
    def __init__(self, competition: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class AnnounceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RerunWinnersRequest(_message.Message):
    __slots__ = ("competition", "phase", "teams")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    TEAMS_FIELD_NUMBER: _ClassVar[int]
    competition: str
    phase: str
    teams: int
    def __init__(self, competition: _Optional[str] = ..., phase: _Optional[str] = ..., teams: _Optional[int] = ...) -> None: ...

class RerunWinnersResponse(_message.Message):
    __slots__ = ("started",)
    STARTED_FIELD_NUMBER: _ClassVar[int]
    started: int
    def __init__(self, started: _Optional[int] = ...) -> None: ...

class ListStandingsRequest(_message.Message):
    __slots__ = ("competition", "phase", "by_private")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BY_PRIVATE_FIELD_NUMBER: _ClassVar[int]
    competition: str
    phase: str
    by_private: bool
    def __init__(self, competition: _Optional[str] = ..., phase: _Optional[str] = ..., by_private: _Optional[bool] = ...) -> None: ...

class ListStandingsResponse(_message.Message):
    __slots__ = ("competition", "phase", "standings", "is_final")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STANDINGS_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    competition: Competition
    phase: str
    standings: _containers.RepeatedCompositeFieldContainer[Standing]
    is_final: bool
    def __init__(self, competition: _Optional[_Union[Competition, _Mapping]] = ..., phase: _Optional[str] = ..., standings: _Optional[_Iterable[_Union[Standing, _Mapping]]] = ..., is_final: _Optional[bool] = ...) -> None: ...

class WatchStandingsRequest(_message.Message):
    __slots__ = ("competition", "phase")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    competition: str
    phase: str
    def __init__(self, competition: _Optional[str] = ..., phase: _Optional[str] = ...) -> None: ...

class WatchStandingsResponse(_message.Message):
    __slots__ = ("competition", "phase", "standings", "is_final")
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STANDINGS_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    competition: Competition
    phase: str
    standings: _containers.RepeatedCompositeFieldContainer[Standing]
    is_final: bool
    def __init__(self, competition: _Optional[_Union[Competition, _Mapping]] = ..., phase: _Optional[str] = ..., standings: _Optional[_Iterable[_Union[Standing, _Mapping]]] = ..., is_final: _Optional[bool] = ...) -> None: ...

class ExportCompetitionRequest(_message.Message):
    __slots__ = ("competition",)
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    competition: str
    def __init__(self, competition: _Optional[str] = ...) -> None: ...

class ExportCompetitionResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
