"""The gRPC server that listens."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from service_harness import serving
from upload_clients import (
    CONFIG,
)


def test_health_service_says_serving(tmp_path):
    async def scene():
        async with (
            serving(CONFIG, tmp_path) as running,
            grpc.aio.insecure_channel(running.address) as channel,
        ):
            request = health_pb2.HealthCheckRequest(service="tardigrad.v1.Federation")
            return (await health_pb2_grpc.HealthStub(channel).Check(request)).status

    assert asyncio.run(scene()) == health_pb2.HealthCheckResponse.SERVING
