"""The encodings that a config can name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tardigrad.core.setting import by_name
from tardigrad.encodings.bfloat16 import BFloat16
from tardigrad.encodings.common_grid import Grid
from tardigrad.encodings.float32 import Float32
from tardigrad.encodings.int4 import Int4
from tardigrad.encodings.int8 import Int8
from tardigrad.encodings.randomk import RandomK
from tardigrad.encodings.sign import Sign
from tardigrad.encodings.topk import TopK

AnyEncoding = Annotated[
    Float32 | BFloat16 | Int8 | Int4 | Sign | TopK | RandomK | Grid, Field(discriminator="kind"), by_name
]
