from tardigrad.service.protocol.v1 import service_pb2 as _service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Entered(_message.Message):
    __slots__ = ("session", "runs")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    runs: _containers.RepeatedCompositeFieldContainer[RunListing]
    def __init__(self, session: _Optional[bytes] = ..., runs: _Optional[_Iterable[_Union[RunListing, _Mapping]]] = ...) -> None: ...

class RunListing(_message.Message):
    __slots__ = ("name", "run", "state")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    run: str
    state: str
    def __init__(self, name: _Optional[str] = ..., run: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class SteerRequest(_message.Message):
    __slots__ = ("run", "act", "client", "limits", "reason")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    act: str
    client: str
    limits: _containers.ScalarMap[str, float]
    reason: str
    def __init__(self, run: _Optional[str] = ..., act: _Optional[str] = ..., client: _Optional[str] = ..., limits: _Optional[_Mapping[str, float]] = ..., reason: _Optional[str] = ...) -> None: ...

class Steered(_message.Message):
    __slots__ = ("changed", "state", "audit", "limits", "under_way", "ended")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    state: str
    audit: int
    limits: _containers.ScalarMap[str, float]
    under_way: int
    ended: int
    def __init__(self, changed: bool = ..., state: _Optional[str] = ..., audit: _Optional[int] = ..., limits: _Optional[_Mapping[str, float]] = ..., under_way: _Optional[int] = ..., ended: _Optional[int] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("run", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    reason: str
    def __init__(self, run: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ExportPart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: ExportHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[ExportHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class ExportHeader(_message.Message):
    __slots__ = ("version", "files", "audit")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    version: int
    files: _containers.RepeatedCompositeFieldContainer[ExportedFile]
    audit: int
    def __init__(self, version: _Optional[int] = ..., files: _Optional[_Iterable[_Union[ExportedFile, _Mapping]]] = ..., audit: _Optional[int] = ...) -> None: ...

class ExportedFile(_message.Message):
    __slots__ = ("name", "size", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    digest: bytes
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("run", "offset")
    RUN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    run: str
    offset: int
    def __init__(self, run: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class FollowedPart(_message.Message):
    __slots__ = ("config", "status", "events", "restart")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    config: str
    status: str
    events: bytes
    restart: bool
    def __init__(self, config: _Optional[str] = ..., status: _Optional[str] = ..., events: _Optional[bytes] = ..., restart: bool = ...) -> None: ...
