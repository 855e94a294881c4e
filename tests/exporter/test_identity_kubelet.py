"""The kubelet's list of devices, asked of a real gRPC server, and the jobs that it gives them to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.support import Processes

from tocsin_exporter.errors import SourceError
from tocsin_exporter.identity.kubelet import KubeletSource
from tocsin_exporter.identity.podresources import ContainerDevices, list_devices, parse_listing
from tocsin_exporter.identity.resolver import Resolver
from tocsin_exporter.sources.latest import ErrorCounter

A, B = "GPU-8f6d2a51-0000-0000-0000-00000000000a", "GPU-8f6d2a51-0000-0000-0000-00000000000b"
MIG = "MIG-8f6d2a51-0000-0000-0000-00000000000c"
UID, CID = "3f1c2b7e-90ab-4cde-8f01-23456789abcd", "ab" * 32
# The kubelet's public interface, as far as it is used here: (field, number, type or message, repeated).
FIELDS: dict[str, list[tuple[str, int, str, bool]]] = {
    "Numa": [("ID", 1, "int64", False)],
    "Topology": [("nodes", 1, "Numa", True)],
    "Devices": [
        ("resource_name", 1, "string", False),
        ("device_ids", 2, "string", True),
        ("topology", 3, "Topology", False),
    ],
    "Cdi": [("name", 1, "string", False)],
    "ClaimResource": [
        ("cdi_devices", 1, "Cdi", True),
        ("driver_name", 2, "string", False),
        ("pool_name", 3, "string", False),
        ("device_name", 4, "string", False),
    ],
    "Claim": [
        ("claim_name", 2, "string", False),
        ("claim_namespace", 3, "string", False),
        ("claim_resources", 4, "ClaimResource", True),
    ],
    "Container": [
        ("name", 1, "string", False),
        ("devices", 2, "Devices", True),
        ("cpu_ids", 3, "int64", True),
        ("dynamic_resources", 5, "Claim", True),
    ],
    "Pod": [
        ("name", 1, "string", False),
        ("namespace", 2, "string", False),
        ("containers", 3, "Container", True),
    ],
    "Listing": [("pod_resources", 1, "Pod", True)],
}


@pytest.fixture(scope="session")
def listing_of() -> Make:
    """Make a listing with Google's own protobuf."""
    descriptor = pytest.importorskip("google.protobuf.descriptor_pb2")
    pool = pytest.importorskip("google.protobuf.descriptor_pool").DescriptorPool()
    factory = pytest.importorskip("google.protobuf.message_factory")
    json_format = pytest.importorskip("google.protobuf.json_format")
    file = descriptor.FileDescriptorProto(name="pods.proto", package="v1", syntax="proto3")
    kinds = descriptor.FieldDescriptorProto
    for message, fields in FIELDS.items():
        made = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            scalar = {"string": kinds.TYPE_STRING, "int64": kinds.TYPE_INT64}.get(kind)
            made.field.add(
                name=name, number=number, label=3 if repeated else 1, type=scalar or kinds.TYPE_MESSAGE,
                **({} if scalar else {"type_name": f".v1.{kind}"}),
            )  # fmt: skip
    pool.Add(file)
    listing = factory.GetMessageClass(pool.FindMessageTypeByName("v1.Listing"))

    def make(pods: list[dict[str, Any]]) -> bytes:
        return bytes(json_format.ParseDict({"pod_resources": pods}, listing()).SerializeToString())

    return make


Serve = Callable[[Callable[[], bytes]], Path]
Make = Callable[[list[dict[str, Any]]], bytes]


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Serve]:
    """Serve List on a Unix socket with the reference implementation of gRPC."""
    grpc = pytest.importorskip("grpc")
    servers: list[Any] = []

    def serve(answer: Callable[[], bytes]) -> Path:
        path = tmp_path / "kubelet.sock"
        handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer())
        server = grpc.server(futures.ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
        )
        server.add_insecure_port(f"unix:{path}")
        server.start()
        servers.append(server)
        return path

    yield serve
    for server in servers:
        server.stop(None).wait()


def pod(name: str, *containers: dict[str, Any], namespace: str = "team-a") -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "containers": list(containers)}


def container(name: str, resource: str = "nvidia.com/gpu", *ids: str) -> dict[str, Any]:
    topology = {"nodes": [{"ID": 1}]}
    return {
        "name": name,
        "cpu_ids": [1, 2, 300],
        "devices": [{"resource_name": resource, "device_ids": list(ids), "topology": topology}]
        if ids
        else [],
    }


def claim(driver: str, *devices: str) -> dict[str, Any]:
    resources = [{"driver_name": driver, "pool_name": "node", "device_name": device} for device in devices]
    return {"name": "main", "dynamic_resources": [{"claim_name": "gpus", "claim_resources": resources}]}


def test_a_real_server_is_understood(kubelet: Serve, listing_of: Make) -> None:
    """Devices by UUID, shared in time, MIG instances and claims; another maker's or unknown ones are not."""
    pods = [
        pod("llm-0", container("main", "nvidia.com/gpu", A, B), container("side")),
        pod("shared", container("main", "nvidia.com/gpu.shared", f"{A}::3", f"{A}::4")),
        pod("mig", container("main", "nvidia.com/mig-1g.10gb", MIG)),
        pod("claimed", claim("gpu.nvidia.com", "gpu-3", "gpu-11", "gpu-0-mig-19-0-1")),
        pod("foreign", claim("gpu.other.com", "gpu-0")),
        pod("nic", container("main", "rdma/hca", "mlx5_0")),
        pod("odd", container("main", "nvidia.com/gpu", "0", "GPU-")),
    ]
    path = kubelet(lambda: listing_of(pods))

    assert list_devices(path, 10) == (
        ContainerDevices("team-a", "llm-0", "main", (A, B)),
        ContainerDevices("team-a", "shared", "main", (A,)),
        ContainerDevices("team-a", "mig", "main", (MIG,)),
        ContainerDevices("team-a", "claimed", "main", ("minor:3", "minor:11")),
    )


def test_a_large_listing_comes_in_many_frames(kubelet: Serve, listing_of: Make) -> None:
    """More than HTTP/2's first window, which is 64 KiB, arrives whole."""
    pods = [pod(f"worker-{number}", container("x" * 200, "nvidia.com/gpu", A)) for number in range(3000)]
    body = listing_of(pods)
    path = kubelet(lambda: body)

    assert len(body) > 500_000
    assert [each["name"] for each in pods] == [each.pod for each in list_devices(path, 20)]


def test_an_empty_node_has_an_empty_listing(kubelet: Serve) -> None:
    """No pods is an answer."""
    assert () == list_devices(kubelet(lambda: b""), 10)


def test_a_call_that_fails_is_told(kubelet: Serve) -> None:
    """An error of the server has no message in it."""

    def fail() -> bytes:
        raise RuntimeError("not ready")

    with pytest.raises(SourceError) as caught:
        list_devices(kubelet(fail), 10)
    assert "bad_data" == caught.value.reason


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        pytest.param(b"", "bad_data", id="closes at once"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", "bad_data", id="another protocol"),
        pytest.param(bytes(8) + b"\x01" + b"\0\0\0\x04\x03\0\0\0\x01", "bad_data", id="refuses"),
        pytest.param(None, "timeout", id="says nothing"),
    ],
)
def test_whoever_is_no_kubelet_costs_a_bounded_time(tmp_path: Path, says: bytes | None, reason: str) -> None:
    """Something else on the socket is an error with a reason, and never a hang."""
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                if says is None:
                    ended.wait(20)
                    return
                connection.recv(4096)
                connection.sendall(says)

        ended = threading.Event()
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with pytest.raises(SourceError) as caught:
                list_devices(path, 1.0 if says is None else 10.0)
        finally:
            ended.set()
            thread.join()
    assert reason == caught.value.reason


def test_a_machine_without_a_kubelet_is_no_error(tmp_path: Path) -> None:
    """No socket, no devices, nothing counted."""
    errors = ErrorCounter()
    source = KubeletSource(tmp_path / "none.sock", errors)
    source.read_once()

    assert ((), {}) == (source.devices_of("team-a", "llm-0", "main"), errors.counts())


@pytest.mark.parametrize(
    "message", [b"\x0a\x05ab", b"\x0b", b"\xff" * 11, b"\x08", b"\x0a\xff\xff\xff\xff\x0f"]
)
def test_what_is_no_listing(message: bytes) -> None:
    """Bytes that break off or are no protobuf are refused."""
    with pytest.raises(ValueError, match=r"cut off|protobuf|too long"):
        parse_listing(message)


@pytest.fixture
def node(processes: Processes, tmp_path: Path) -> Path:
    """A pod's rank that was not told its devices; the kubelet's folders name pod and container."""
    logs = tmp_path / "log"
    (logs / "pods" / f"team-a_llm-0_{UID}").mkdir(parents=True)
    (logs / "containers").mkdir()
    (logs / "containers" / f"llm-0_team-a_main-{CID}.log").symlink_to("/gone")
    processes.add(
        50,
        environ={"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "CUDA_VISIBLE_DEVICES": "0,1"},
        cgroup=f"0::/kubepods/burstable/pod{UID}/{CID}\n",
    )
    return logs / "pods"


def test_a_containers_devices_are_its_jobs(
    kubelet: Serve, listing_of: Make, processes: Processes, node: Path
) -> None:
    """What the kubelet gave the container is held by the job, by none of its ranks alone."""
    side = container("side", "nvidia.com/mig-1g.10gb", MIG)
    pods = [pod("llm-0", container("main", "nvidia.com/gpu", A, B), side)]
    source = KubeletSource(kubelet(lambda: listing_of(pods)), ErrorCounter())
    source.read_once()
    view = Resolver(processes.root, ErrorCounter(), pods=node, kubelet=source.devices_of)
    view.scan()

    (given,) = view.assigned()
    assert ("k8s/team-a/llm", "", (A, B)) == (given.job_id, given.rank, given.devices)
    assert [CID] == [who.container for who in view.living()]


def test_a_container_without_a_name_has_what_its_pod_has_alone(kubelet: Serve, listing_of: Make) -> None:
    """Two containers on devices leave it open which one it is; another namespace's pod is another pod."""
    pods = [
        pod("one", container("main", "nvidia.com/gpu", A), container("side")),
        pod("two", container("main", "nvidia.com/gpu", A), container("side", "nvidia.com/gpu", B)),
    ]
    source = KubeletSource(kubelet(lambda: listing_of(pods)), ErrorCounter())
    source.read_once()

    assert (A,) == source.devices_of("team-a", "one", "")
    assert () == source.devices_of("team-a", "two", "")
    assert (B,) == source.devices_of("team-a", "two", "side")
    assert () == source.devices_of("team-b", "one", "")
