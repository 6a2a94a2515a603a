"""The masks that helpers release for a batch, as the server stores them and gives them to the masked grid."""

from __future__ import annotations

import numpy as np

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.upload import TypedVector, Upload
from tardigrad.secure.masked_grid import MaskedGridLayer
from tardigrad.secure.masks import SALT, UNSIGNED
from tardigrad.service.protocol.wire import Layout

MASKS = "masks"
"""The name of the one vector in the payload of a release."""


def masked_layer(aggregator: Aggregator) -> MaskedGridLayer:
    """Return the layer of a secure run."""
    return next(layer for layer in aggregator.layers if isinstance(layer, MaskedGridLayer))


def release_layout(uploads: Layout) -> Layout:
    """Return the layout of a release: one integer for each code of an upload.

    >>> release_layout((TypedVector("delta/codes", "int32", 3), SALT))
    (TypedVector(name='masks', dtype='int32', length=3),)
    """
    return (TypedVector(MASKS, uploads[0].dtype, sum(vector.length for vector in uploads if vector != SALT)),)


def released_masks(payload: Upload) -> np.ndarray:
    """Return the integers of a release, without their sign."""
    masks = payload.vectors[MASKS].numpy()
    return masks.view(UNSIGNED[8 * masks.itemsize])
