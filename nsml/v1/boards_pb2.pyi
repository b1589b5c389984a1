import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from nsml.v1 import resources_pb2 as _resources_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BoardKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BOARD_KIND_UNSPECIFIED: _ClassVar[BoardKind]
    BOARD_KIND_METRIC: _ClassVar[BoardKind]
    BOARD_KIND_DATASET: _ClassVar[BoardKind]

class ScoreDirection(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCORE_DIRECTION_UNSPECIFIED: _ClassVar[ScoreDirection]
    SCORE_DIRECTION_MAX: _ClassVar[ScoreDirection]
    SCORE_DIRECTION_MIN: _ClassVar[ScoreDirection]

class BestPer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BEST_PER_UNSPECIFIED: _ClassVar[BestPer]
    BEST_PER_NONE: _ClassVar[BestPer]
    BEST_PER_USER: _ClassVar[BestPer]
    BEST_PER_TEAM: _ClassVar[BestPer]

class MetricValue(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    METRIC_VALUE_UNSPECIFIED: _ClassVar[MetricValue]
    METRIC_VALUE_BEST: _ClassVar[MetricValue]
    METRIC_VALUE_LAST: _ClassVar[MetricValue]

class PublicScore(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUBLIC_SCORE_UNSPECIFIED: _ClassVar[PublicScore]
    PUBLIC_SCORE_EXACT: _ClassVar[PublicScore]
    PUBLIC_SCORE_OWN_BEST: _ClassVar[PublicScore]
    PUBLIC_SCORE_LADDER: _ClassVar[PublicScore]

class SubmissionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBMISSION_STATE_UNSPECIFIED: _ClassVar[SubmissionState]
    SUBMISSION_STATE_QUEUED: _ClassVar[SubmissionState]
    SUBMISSION_STATE_PREDICTING: _ClassVar[SubmissionState]
    SUBMISSION_STATE_EVALUATING: _ClassVar[SubmissionState]
    SUBMISSION_STATE_SCORED: _ClassVar[SubmissionState]
    SUBMISSION_STATE_FAILED: _ClassVar[SubmissionState]

class SubmissionCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBMISSION_CAUSE_UNSPECIFIED: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_ENDED_EARLY: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_NOT_PAUSED: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_LOAD_FAILED: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_INFER_FAILED: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_NO_PREDICTION: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_TOO_LARGE: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_PREDICTION_TIMEOUT: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_MALFORMED: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_EVALUATION_FAILED: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_EVALUATION_TIMEOUT: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_NOT_FINITE: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_PLATFORM: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_REMOVED: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_STOPPED: _ClassVar[SubmissionCause]
    SUBMISSION_CAUSE_LIMIT_EXCEEDED: _ClassVar[SubmissionCause]
BOARD_KIND_UNSPECIFIED: BoardKind
BOARD_KIND_METRIC: BoardKind
BOARD_KIND_DATASET: BoardKind
SCORE_DIRECTION_UNSPECIFIED: ScoreDirection
SCORE_DIRECTION_MAX: ScoreDirection
SCORE_DIRECTION_MIN: ScoreDirection
BEST_PER_UNSPECIFIED: BestPer
BEST_PER_NONE: BestPer
BEST_PER_USER: BestPer
BEST_PER_TEAM: BestPer
METRIC_VALUE_UNSPECIFIED: MetricValue
METRIC_VALUE_BEST: MetricValue
METRIC_VALUE_LAST: MetricValue
PUBLIC_SCORE_UNSPECIFIED: PublicScore
PUBLIC_SCORE_EXACT: PublicScore
PUBLIC_SCORE_OWN_BEST: PublicScore
PUBLIC_SCORE_LADDER: PublicScore
SUBMISSION_STATE_UNSPECIFIED: SubmissionState
SUBMISSION_STATE_QUEUED: SubmissionState
SUBMISSION_STATE_PREDICTING: SubmissionState
SUBMISSION_STATE_EVALUATING: SubmissionState
SUBMISSION_STATE_SCORED: SubmissionState
SUBMISSION_STATE_FAILED: SubmissionState
SUBMISSION_CAUSE_UNSPECIFIED: SubmissionCause
SUBMISSION_CAUSE_ENDED_EARLY: SubmissionCause
SUBMISSION_CAUSE_NOT_PAUSED: SubmissionCause
SUBMISSION_CAUSE_LOAD_FAILED: SubmissionCause
SUBMISSION_CAUSE_INFER_FAILED: SubmissionCause
SUBMISSION_CAUSE_NO_PREDICTION: SubmissionCause
SUBMISSION_CAUSE_TOO_LARGE: SubmissionCause
SUBMISSION_CAUSE_PREDICTION_TIMEOUT: SubmissionCause
SUBMISSION_CAUSE_MALFORMED: SubmissionCause
SUBMISSION_CAUSE_EVALUATION_FAILED: SubmissionCause
SUBMISSION_CAUSE_EVALUATION_TIMEOUT: SubmissionCause
SUBMISSION_CAUSE_NOT_FINITE: SubmissionCause
SUBMISSION_CAUSE_PLATFORM: SubmissionCause
SUBMISSION_CAUSE_REMOVED: SubmissionCause
SUBMISSION_CAUSE_STOPPED: SubmissionCause
SUBMISSION_CAUSE_LIMIT_EXCEEDED: SubmissionCause

class SubmissionLimit(_message.Message):
    __slots__ = ("count", "window")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    count: int
    window: _duration_pb2.Duration
    def __init__(self, count: _Optional[int] = ..., window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class BoardSettings(_message.Message):
    __slots__ = ("metric", "direction", "filter", "best_per", "value", "public_score", "ladder_step", "limit", "failed_limit", "predict_time", "evaluate_time", "prediction_bytes", "visibility", "description", "is_open", "check_every")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    BEST_PER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_SCORE_FIELD_NUMBER: _ClassVar[int]
    LADDER_STEP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FAILED_LIMIT_FIELD_NUMBER: _ClassVar[int]
    PREDICT_TIME_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_TIME_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    CHECK_EVERY_FIELD_NUMBER: _ClassVar[int]
    metric: str
    direction: ScoreDirection
    filter: str
    best_per: BestPer
    value: MetricValue
    public_score: PublicScore
    ladder_step: float
    limit: SubmissionLimit
    failed_limit: SubmissionLimit
    predict_time: _duration_pb2.Duration
    evaluate_time: _duration_pb2.Duration
    prediction_bytes: int
    visibility: _resources_pb2.Visibility
    description: str
    is_open: bool
    check_every: int
    def __init__(self, metric: _Optional[str] = ..., direction: _Optional[_Union[ScoreDirection, str]] = ..., filter: _Optional[str] = ..., best_per: _Optional[_Union[BestPer, str]] = ..., value: _Optional[_Union[MetricValue, str]] = ..., public_score: _Optional[_Union[PublicScore, str]] = ..., ladder_step: _Optional[float] = ..., limit: _Optional[_Union[SubmissionLimit, _Mapping]] = ..., failed_limit: _Optional[_Union[SubmissionLimit, _Mapping]] = ..., predict_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., evaluate_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prediction_bytes: _Optional[int] = ..., visibility: _Optional[_Union[_resources_pb2.Visibility, str]] = ..., description: _Optional[str] = ..., is_open: _Optional[bool] = ..., check_every: _Optional[int] = ...) -> None: ...

class Board(_message.Message):
    __slots__ = ("kind", "owner", "name", "settings", "created_at", "entry_count", "evaluation", "reevaluated", "to_reevaluate", "may_change", "has_private_scores", "reevaluation_step")
    KIND_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    REEVALUATED_FIELD_NUMBER: _ClassVar[int]
    TO_REEVALUATE_FIELD_NUMBER: _ClassVar[int]
    MAY_CHANGE_FIELD_NUMBER: _ClassVar[int]
    HAS_PRIVATE_SCORES_FIELD_NUMBER: _ClassVar[int]
    REEVALUATION_STEP_FIELD_NUMBER: _ClassVar[int]
    kind: BoardKind
    owner: str
    name: str
    settings: BoardSettings
    created_at: _timestamp_pb2.Timestamp
    entry_count: int
    evaluation: int
    reevaluated: int
    to_reevaluate: int
    may_change: bool
    has_private_scores: bool
    reevaluation_step: SubmissionStep
    def __init__(self, kind: _Optional[_Union[BoardKind, str]] = ..., owner: _Optional[str] = ..., name: _Optional[str] = ..., settings: _Optional[_Union[BoardSettings, _Mapping]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., entry_count: _Optional[int] = ..., evaluation: _Optional[int] = ..., reevaluated: _Optional[int] = ..., to_reevaluate: _Optional[int] = ..., may_change: _Optional[bool] = ..., has_private_scores: _Optional[bool] = ..., reevaluation_step: _Optional[_Union[SubmissionStep, _Mapping]] = ...) -> None: ...

class BoardEntry(_message.Message):
    __slots__ = ("rank", "rank_before", "owner", "team", "score", "submitted_at", "session", "session_id", "checkpoint", "args", "submission_id", "state", "gpu_seconds", "rank_low", "rank_high", "standard_error", "is_own", "trend", "memo", "private_score", "is_duplicate", "is_unstable", "cause", "failing_since")
    RANK_FIELD_NUMBER: _ClassVar[int]
    RANK_BEFORE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RANK_LOW_FIELD_NUMBER: _ClassVar[int]
    RANK_HIGH_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_OWN_FIELD_NUMBER: _ClassVar[int]
    TREND_FIELD_NUMBER: _ClassVar[int]
    MEMO_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_SCORE_FIELD_NUMBER: _ClassVar[int]
    IS_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    IS_UNSTABLE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    FAILING_SINCE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    rank_before: int
    owner: str
    team: str
    score: float
    submitted_at: _timestamp_pb2.Timestamp
    session: str
    session_id: str
    checkpoint: str
    args: str
    submission_id: str
    state: SubmissionState
    gpu_seconds: float
    rank_low: int
    rank_high: int
    standard_error: float
    is_own: bool
    trend: _containers.RepeatedScalarFieldContainer[float]
    memo: str
    private_score: float
    is_duplicate: bool
    is_unstable: bool
    cause: SubmissionCause
    failing_since: _timestamp_pb2.Timestamp
    def __init__(self, rank: _Optional[int] = ..., rank_before: _Optional[int] = ..., owner: _Optional[str] = ..., team: _Optional[str] = ..., score: _Optional[float] = ..., submitted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., session: _Optional[str] = ..., session_id: _Optional[str] = ..., checkpoint: _Optional[str] = ..., args: _Optional[str] = ..., submission_id: _Optional[str] = ..., state: _Optional[_Union[SubmissionState, str]] = ..., gpu_seconds: _Optional[float] = ..., rank_low: _Optional[int] = ..., rank_high: _Optional[int] = ..., standard_error: _Optional[float] = ..., is_own: _Optional[bool] = ..., trend: _Optional[_Iterable[float]] = ..., memo: _Optional[str] = ..., private_score: _Optional[float] = ..., is_duplicate: _Optional[bool] = ..., is_unstable: _Optional[bool] = ..., cause: _Optional[_Union[SubmissionCause, str]] = ..., failing_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SubmissionStep(_message.Message):
    __slots__ = ("kind", "session", "started_at", "ended_at", "waiting", "failing_since")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FAILING_SINCE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    session: str
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    waiting: str
    failing_since: _timestamp_pb2.Timestamp
    def __init__(self, kind: _Optional[str] = ..., session: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., waiting: _Optional[str] = ..., failing_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Submission(_message.Message):
    __slots__ = ("id", "dataset", "dataset_version", "owner", "team", "session", "session_id", "checkpoint", "is_test", "state", "cause", "submitted_at", "ended_at", "steps", "score", "private_score", "evaluation_output", "rank", "evaluation", "message", "next_at", "competition", "keeps_best")
    ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    DATASET_VERSION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    IS_TEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_SCORE_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_FIELD_NUMBER: _ClassVar[int]
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    KEEPS_BEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    dataset: str
    dataset_version: int
    owner: str
    team: str
    session: str
    session_id: str
    checkpoint: str
    is_test: bool
    state: SubmissionState
    cause: SubmissionCause
    submitted_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    steps: _containers.RepeatedCompositeFieldContainer[SubmissionStep]
    score: float
    private_score: float
    evaluation_output: str
    rank: int
    evaluation: int
    message: str
    next_at: _timestamp_pb2.Timestamp
    competition: str
    keeps_best: bool
    def __init__(self, id: _Optional[str] = ..., dataset: _Optional[str] = ..., dataset_version: _Optional[int] = ..., owner: _Optional[str] = ..., team: _Optional[str] = ..., session: _Optional[str] = ..., session_id: _Optional[str] = ..., checkpoint: _Optional[str] = ..., is_test: _Optional[bool] = ..., state: _Optional[_Union[SubmissionState, str]] = ..., cause: _Optional[_Union[SubmissionCause, str]] = ..., submitted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[SubmissionStep, _Mapping]]] = ..., score: _Optional[float] = ..., private_score: _Optional[float] = ..., evaluation_output: _Optional[str] = ..., rank: _Optional[int] = ..., evaluation: _Optional[int] = ..., message: _Optional[str] = ..., next_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., competition: _Optional[str] = ..., keeps_best: _Optional[bool] = ...) -> None: ...

class CreateBoardRequest(_message.Message):
    __slots__ = ("name", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: BoardSettings
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[BoardSettings, _Mapping]] = ...) -> None: ...

class CreateBoardResponse(_message.Message):
    __slots__ = ("board",)
    BOARD_FIELD_NUMBER: _ClassVar[int]
    board: Board
    def __init__(self, board: _Optional[_Union[Board, _Mapping]] = ...) -> None: ...

class UpdateBoardRequest(_message.Message):
    __slots__ = ("board", "settings")
    BOARD_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    board: str
    settings: BoardSettings
    def __init__(self, board: _Optional[str] = ..., settings: _Optional[_Union[BoardSettings, _Mapping]] = ...) -> None: ...

class UpdateBoardResponse(_message.Message):
    __slots__ = ("board",)
    BOARD_FIELD_NUMBER: _ClassVar[int]
    board: Board
    def __init__(self, board: _Optional[_Union[Board, _Mapping]] = ...) -> None: ...

class DeleteBoardRequest(_message.Message):
    __slots__ = ("board",)
    BOARD_FIELD_NUMBER: _ClassVar[int]
    board: str
    def __init__(self, board: _Optional[str] = ...) -> None: ...

class DeleteBoardResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBoardRequest(_message.Message):
    __slots__ = ("board",)
    BOARD_FIELD_NUMBER: _ClassVar[int]
    board: str
    def __init__(self, board: _Optional[str] = ...) -> None: ...

class GetBoardResponse(_message.Message):
    __slots__ = ("board",)
    BOARD_FIELD_NUMBER: _ClassVar[int]
    board: Board
    def __init__(self, board: _Optional[_Union[Board, _Mapping]] = ...) -> None: ...

class ListBoardsRequest(_message.Message):
    __slots__ = ("page_size", "cursor")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    cursor: str
    def __init__(self, page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListBoardsResponse(_message.Message):
    __slots__ = ("boards", "next_cursor")
    BOARDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    boards: _containers.RepeatedCompositeFieldContainer[Board]
    next_cursor: str
    def __init__(self, boards: _Optional[_Iterable[_Union[Board, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class ListEntriesRequest(_message.Message):
    __slots__ = ("board", "best_per", "own_only", "limit", "evaluation", "by_private")
    BOARD_FIELD_NUMBER: _ClassVar[int]
    BEST_PER_FIELD_NUMBER: _ClassVar[int]
    OWN_ONLY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    BY_PRIVATE_FIELD_NUMBER: _ClassVar[int]
    board: str
    best_per: BestPer
    own_only: bool
    limit: int
    evaluation: int
    by_private: bool
    def __init__(self, board: _Optional[str] = ..., best_per: _Optional[_Union[BestPer, str]] = ..., own_only: _Optional[bool] = ..., limit: _Optional[int] = ..., evaluation: _Optional[int] = ..., by_private: _Optional[bool] = ...) -> None: ...

class ListEntriesResponse(_message.Message):
    __slots__ = ("board", "entries")
    BOARD_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    board: Board
    entries: _containers.RepeatedCompositeFieldContainer[BoardEntry]
    def __init__(self, board: _Optional[_Union[Board, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[BoardEntry, _Mapping]]] = ...) -> None: ...

class WatchBoardRequest(_message.Message):
    __slots__ = ("board", "best_per", "own_only", "limit", "changes")
    BOARD_FIELD_NUMBER: _ClassVar[int]
    BEST_PER_FIELD_NUMBER: _ClassVar[int]
    OWN_ONLY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    board: str
    best_per: BestPer
    own_only: bool
    limit: int
    changes: bool
    def __init__(self, board: _Optional[str] = ..., best_per: _Optional[_Union[BestPer, str]] = ..., own_only: _Optional[bool] = ..., limit: _Optional[int] = ..., changes: _Optional[bool] = ...) -> None: ...

class WatchBoardResponse(_message.Message):
    __slots__ = ("board", "entries", "change")
    BOARD_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    board: Board
    entries: _containers.RepeatedCompositeFieldContainer[BoardEntry]
    change: BoardChange
    def __init__(self, board: _Optional[_Union[Board, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[BoardEntry, _Mapping]]] = ..., change: _Optional[_Union[BoardChange, _Mapping]] = ...) -> None: ...

class BoardChange(_message.Message):
    __slots__ = ("runs", "ranks", "ranks_before", "rank_lows", "rank_highs", "gpu_seconds_runs", "gpu_seconds", "trends")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    RANKS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    RANK_LOWS_FIELD_NUMBER: _ClassVar[int]
    RANK_HIGHS_FIELD_NUMBER: _ClassVar[int]
    GPU_SECONDS_RUNS_FIELD_NUMBER: _ClassVar[int]
    GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRENDS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedScalarFieldContainer[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    ranks_before: _containers.RepeatedScalarFieldContainer[int]
    rank_lows: _containers.RepeatedScalarFieldContainer[int]
    rank_highs: _containers.RepeatedScalarFieldContainer[int]
    gpu_seconds_runs: _containers.RepeatedScalarFieldContainer[int]
    gpu_seconds: _containers.RepeatedScalarFieldContainer[float]
    trends: _containers.RepeatedCompositeFieldContainer[BoardTrend]
    def __init__(self, runs: _Optional[_Iterable[int]] = ..., ranks: _Optional[_Iterable[int]] = ..., ranks_before: _Optional[_Iterable[int]] = ..., rank_lows: _Optional[_Iterable[int]] = ..., rank_highs: _Optional[_Iterable[int]] = ..., gpu_seconds_runs: _Optional[_Iterable[int]] = ..., gpu_seconds: _Optional[_Iterable[float]] = ..., trends: _Optional[_Iterable[_Union[BoardTrend, _Mapping]]] = ...) -> None: ...

class BoardTrend(_message.Message):
    __slots__ = ("values", "entries")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    entries: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[float]] = ..., entries: _Optional[_Iterable[int]] = ...) -> None: ...

class ReevaluateBoardRequest(_message.Message):
    __slots__ = ("board",)
    BOARD_FIELD_NUMBER: _ClassVar[int]
    board: str
    def __init__(self, board: _Optional[str] = ...) -> None: ...

class ReevaluateBoardResponse(_message.Message):
    __slots__ = ("board",)
    BOARD_FIELD_NUMBER: _ClassVar[int]
    board: Board
    def __init__(self, board: _Optional[_Union[Board, _Mapping]] = ...) -> None: ...

class CreateSubmissionRequest(_message.Message):
    __slots__ = ("session", "checkpoint", "is_test", "request_id", "batch")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    IS_TEST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    session: str
    checkpoint: str
    is_test: bool
    request_id: str
    batch: int
    def __init__(self, session: _Optional[str] = ..., checkpoint: _Optional[str] = ..., is_test: _Optional[bool] = ..., request_id: _Optional[str] = ..., batch: _Optional[int] = ...) -> None: ...

class CreateSubmissionResponse(_message.Message):
    __slots__ = ("submission",)
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    submission: Submission
    def __init__(self, submission: _Optional[_Union[Submission, _Mapping]] = ...) -> None: ...

class GetSubmissionRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class GetSubmissionResponse(_message.Message):
    __slots__ = ("submission",)
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    submission: Submission
    def __init__(self, submission: _Optional[_Union[Submission, _Mapping]] = ...) -> None: ...

class ListSubmissionsRequest(_message.Message):
    __slots__ = ("board", "page_size", "cursor")
    BOARD_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    board: str
    page_size: int
    cursor: str
    def __init__(self, board: _Optional[str] = ..., page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListSubmissionsResponse(_message.Message):
    __slots__ = ("submissions", "next_cursor")
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    submissions: _containers.RepeatedCompositeFieldContainer[Submission]
    next_cursor: str
    def __init__(self, submissions: _Optional[_Iterable[_Union[Submission, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class WatchSubmissionRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class WatchSubmissionResponse(_message.Message):
    __slots__ = ("submission",)
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    submission: Submission
    def __init__(self, submission: _Optional[_Union[Submission, _Mapping]] = ...) -> None: ...
