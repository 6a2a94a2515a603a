from tardigrad.service.protocol.v1 import service_pb2 as _service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GreetRequest(_message.Message):
    __slots__ = ("run", "receipt", "version")
    RUN_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    run: str
    receipt: bytes
    version: int
    def __init__(self, run: _Optional[str] = ..., receipt: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class Greeting(_message.Message):
    __slots__ = ("session", "run", "policy_signature", "receipt", "key", "open_batch", "places")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    POLICY_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPEN_BATCH_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    run: str
    policy_signature: bytes
    receipt: _service_pb2.SignedReceipt
    key: _service_pb2.OfferedKey
    open_batch: int
    places: _containers.RepeatedCompositeFieldContainer[Place]
    def __init__(self, session: _Optional[bytes] = ..., run: _Optional[str] = ..., policy_signature: _Optional[bytes] = ..., receipt: _Optional[_Union[_service_pb2.SignedReceipt, _Mapping]] = ..., key: _Optional[_Union[_service_pb2.OfferedKey, _Mapping]] = ..., open_batch: _Optional[int] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ...) -> None: ...

class BeginPart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: _service_pb2.Signed
    chunk: bytes
    def __init__(self, header: _Optional[_Union[_service_pb2.Signed, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class BeginRequest(_message.Message):
    __slots__ = ("policy", "vectors")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    policy: bytes
    vectors: _containers.RepeatedCompositeFieldContainer[_service_pb2.Vector]
    def __init__(self, policy: _Optional[bytes] = ..., vectors: _Optional[_Iterable[_Union[_service_pb2.Vector, _Mapping]]] = ...) -> None: ...

class Begun(_message.Message):
    __slots__ = ("policy_signature", "receipt", "key")
    POLICY_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    policy_signature: bytes
    receipt: _service_pb2.SignedReceipt
    key: _service_pb2.OfferedKey
    def __init__(self, policy_signature: _Optional[bytes] = ..., receipt: _Optional[_Union[_service_pb2.SignedReceipt, _Mapping]] = ..., key: _Optional[_Union[_service_pb2.OfferedKey, _Mapping]] = ...) -> None: ...

class AdmitRequest(_message.Message):
    __slots__ = ("deliveries", "check_only")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    CHECK_ONLY_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedScalarFieldContainer[bytes]
    check_only: bool
    def __init__(self, deliveries: _Optional[_Iterable[bytes]] = ..., check_only: bool = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("trip", "batch", "position", "refusal", "digest")
    TRIP_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    trip: int
    batch: int
    position: int
    refusal: str
    digest: bytes
    def __init__(self, trip: _Optional[int] = ..., batch: _Optional[int] = ..., position: _Optional[int] = ..., refusal: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Admitted(_message.Message):
    __slots__ = ("places", "key")
    PLACES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    places: _containers.RepeatedCompositeFieldContainer[Place]
    key: _service_pb2.OfferedKey
    def __init__(self, places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., key: _Optional[_Union[_service_pb2.OfferedKey, _Mapping]] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("batch", "masked_digest")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    MASKED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    batch: int
    masked_digest: bytes
    def __init__(self, batch: _Optional[int] = ..., masked_digest: _Optional[bytes] = ...) -> None: ...

class ReleasePart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: Release
    chunk: bytes
    def __init__(self, header: _Optional[_Union[Release, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("batch", "length", "digest")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    batch: int
    length: int
    digest: bytes
    def __init__(self, batch: _Optional[int] = ..., length: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class PublishPart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: _service_pb2.Signed
    chunk: bytes
    def __init__(self, header: _Optional[_Union[_service_pb2.Signed, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("version", "digest", "vectors")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    version: int
    digest: bytes
    vectors: _containers.RepeatedCompositeFieldContainer[_service_pb2.Vector]
    def __init__(self, version: _Optional[int] = ..., digest: _Optional[bytes] = ..., vectors: _Optional[_Iterable[_Union[_service_pb2.Vector, _Mapping]]] = ...) -> None: ...

class AbandonRequest(_message.Message):
    __slots__ = ("batch", "reason")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    batch: int
    reason: str
    def __init__(self, batch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Receipted(_message.Message):
    __slots__ = ("receipt", "key")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    receipt: _service_pb2.SignedReceipt
    key: _service_pb2.OfferedKey
    def __init__(self, receipt: _Optional[_Union[_service_pb2.SignedReceipt, _Mapping]] = ..., key: _Optional[_Union[_service_pb2.OfferedKey, _Mapping]] = ...) -> None: ...
