from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Signed(_message.Message):
    __slots__ = ("claim", "signature")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    claim: bytes
    signature: bytes
    def __init__(self, claim: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("client", "method", "session", "nonce", "time_ms", "content")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    client: str
    method: str
    session: bytes
    nonce: bytes
    time_ms: int
    content: bytes
    def __init__(self, client: _Optional[str] = ..., method: _Optional[str] = ..., session: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., time_ms: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("frozen", "revision", "run", "software")
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    frozen: bytes
    revision: int
    run: str
    software: str
    def __init__(self, frozen: _Optional[bytes] = ..., revision: _Optional[int] = ..., run: _Optional[str] = ..., software: _Optional[str] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("run", "session", "shapes", "requests_per_second", "settings", "declaration", "policy", "policy_signatures", "name")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    DECLARATION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    POLICY_SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    run: str
    session: bytes
    shapes: _containers.RepeatedCompositeFieldContainer[Shape]
    requests_per_second: float
    settings: str
    declaration: str
    policy: bytes
    policy_signatures: _containers.RepeatedScalarFieldContainer[bytes]
    name: str
    def __init__(self, run: _Optional[str] = ..., session: _Optional[bytes] = ..., shapes: _Optional[_Iterable[_Union[Shape, _Mapping]]] = ..., requests_per_second: _Optional[float] = ..., settings: _Optional[str] = ..., declaration: _Optional[str] = ..., policy: _Optional[bytes] = ..., policy_signatures: _Optional[_Iterable[bytes]] = ..., name: _Optional[str] = ...) -> None: ...

class SignedReceipt(_message.Message):
    __slots__ = ("receipt", "signature")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    receipt: bytes
    signature: bytes
    def __init__(self, receipt: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class OfferedKey(_message.Message):
    __slots__ = ("key_id", "public_key", "signature")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    key_id: bytes
    public_key: bytes
    signature: bytes
    def __init__(self, key_id: _Optional[bytes] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class OfferedKeys(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[OfferedKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[OfferedKey, _Mapping]]] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("key_id", "sealed")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    key_id: bytes
    sealed: bytes
    def __init__(self, key_id: _Optional[bytes] = ..., sealed: _Optional[bytes] = ...) -> None: ...

class Shape(_message.Message):
    __slots__ = ("sizes",)
    SIZES_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class Vector(_message.Message):
    __slots__ = ("name", "length", "dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    length: int
    dtype: str
    def __init__(self, name: _Optional[str] = ..., length: _Optional[int] = ..., dtype: _Optional[str] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("holding", "has")
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    HAS_FIELD_NUMBER: _ClassVar[int]
    holding: _containers.RepeatedScalarFieldContainer[int]
    has: int
    def __init__(self, holding: _Optional[_Iterable[int]] = ..., has: _Optional[int] = ...) -> None: ...

class TaskPart(_message.Message):
    __slots__ = ("header", "chunk", "wait", "over")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    header: TaskHeader
    chunk: bytes
    wait: Wait
    over: Over
    def __init__(self, header: _Optional[_Union[TaskHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., over: _Optional[_Union[Over, _Mapping]] = ...) -> None: ...

class TaskHeader(_message.Message):
    __slots__ = ("trip", "version", "seed", "settings", "vectors", "evaluate", "epoch", "since", "receipts")
    TRIP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    trip: int
    version: int
    seed: int
    settings: str
    vectors: _containers.RepeatedCompositeFieldContainer[Vector]
    evaluate: bool
    epoch: int
    since: int
    receipts: _containers.RepeatedCompositeFieldContainer[SignedReceipt]
    def __init__(self, trip: _Optional[int] = ..., version: _Optional[int] = ..., seed: _Optional[int] = ..., settings: _Optional[str] = ..., vectors: _Optional[_Iterable[_Union[Vector, _Mapping]]] = ..., evaluate: bool = ..., epoch: _Optional[int] = ..., since: _Optional[int] = ..., receipts: _Optional[_Iterable[_Union[SignedReceipt, _Mapping]]] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("seconds", "reason")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    reason: str
    def __init__(self, seconds: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class Over(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class UploadPart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: Signed
    chunk: bytes
    def __init__(self, header: _Optional[_Union[Signed, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class UploadHeader(_message.Message):
    __slots__ = ("run", "trip", "version", "vectors", "digest", "examples", "steps", "loss", "evaluated", "metrics", "epoch", "encoding", "envelopes")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    TRIP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    run: str
    trip: int
    version: int
    vectors: _containers.RepeatedCompositeFieldContainer[Vector]
    digest: bytes
    examples: int
    steps: int
    loss: float
    evaluated: int
    metrics: _containers.ScalarMap[str, float]
    epoch: int
    encoding: str
    envelopes: _containers.RepeatedCompositeFieldContainer[Envelope]
    def __init__(self, run: _Optional[str] = ..., trip: _Optional[int] = ..., version: _Optional[int] = ..., vectors: _Optional[_Iterable[_Union[Vector, _Mapping]]] = ..., digest: _Optional[bytes] = ..., examples: _Optional[int] = ..., steps: _Optional[int] = ..., loss: _Optional[float] = ..., evaluated: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., epoch: _Optional[int] = ..., encoding: _Optional[str] = ..., envelopes: _Optional[_Iterable[_Union[Envelope, _Mapping]]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("accepted", "reason", "version", "staleness", "weight", "over")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    version: int
    staleness: int
    weight: float
    over: str
    def __init__(self, accepted: bool = ..., reason: _Optional[str] = ..., version: _Optional[int] = ..., staleness: _Optional[int] = ..., weight: _Optional[float] = ..., over: _Optional[str] = ...) -> None: ...

class GiveUpRequest(_message.Message):
    __slots__ = ("run", "trip", "epoch")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TRIP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    run: str
    trip: int
    epoch: int
    def __init__(self, run: _Optional[str] = ..., trip: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class GivenUp(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: bool = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("version", "trips", "time", "in_flight", "metrics", "over", "waiting", "given_up", "refused", "staleness")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRIPS_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    version: int
    trips: int
    time: float
    in_flight: int
    metrics: _containers.ScalarMap[str, float]
    over: str
    waiting: int
    given_up: int
    refused: _containers.ScalarMap[str, int]
    staleness: float
    def __init__(self, version: _Optional[int] = ..., trips: _Optional[int] = ..., time: _Optional[float] = ..., in_flight: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., over: _Optional[str] = ..., waiting: _Optional[int] = ..., given_up: _Optional[int] = ..., refused: _Optional[_Mapping[str, int]] = ..., staleness: _Optional[float] = ...) -> None: ...
