"""The layers of a private run, from the bottom to the top of the stack."""

from __future__ import annotations

from tardigrad.algorithms.layers import UploadLayer
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.layers.canaries import Auditor, Canaries
from tardigrad.privacy.layers.central_noise import CentralNoiseLayer, Normals
from tardigrad.privacy.layers.clip import ClipLayer
from tardigrad.privacy.layers.local_noise import LocalNoiseLayer
from tardigrad.privacy.layers.private_versions import PrivateVersionsLayer


def central_layers(
    guarantee: Guarantee, normals: Normals, canaries: Canaries | None = None
) -> list[UploadLayer]:
    """Return the layers of central privacy: clip, noise, private versions.

    `normals` is called with the step. If there are canaries, the layers of an auditor enclose the others.
    """
    clip = ClipLayer(guarantee.clip, guarantee.adaptive)
    layers: list[UploadLayer] = [clip, CentralNoiseLayer(guarantee, normals, clip)]
    if guarantee.version_gamma:
        layers.append(PrivateVersionsLayer(guarantee))
    if canaries is None:
        return layers
    auditor = Auditor(canaries, guarantee, clip)
    return [auditor.canaries, *layers, auditor.watch]


def local_layers(guarantee: Guarantee, normals: Normals) -> list[UploadLayer]:
    """Return the layers of local privacy. `normals` is called with the trip."""
    epsilon = guarantee.epsilon() if guarantee.noise_multiplier > 0 else None
    return [LocalNoiseLayer(guarantee.clip, guarantee.noise_multiplier, normals, epsilon)]
