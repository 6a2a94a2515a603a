"""A toy encoding: an upload layer in one file. `Aggregator(..., layers=[Doubling()])` puts it to use."""

from dataclasses import replace

from tardigrad.algorithms.layers import UploadLayer, Wire


class Doubling(UploadLayer):
    """A toy encoding: twice as much travels, and half of it counts."""

    name = "doubling"
    wire = Wire(dtype="float16", common_scale=True)

    def client(self, upload, task, memory):
        return replace(upload, vectors={name: 2 * vector for name, vector in upload.vectors.items()})

    def add(self, buffer, delivery, upload, start):
        return replace(upload, vectors={name: vector / 2 for name, vector in upload.vectors.items()})
