"""What a rank needs of the CUDA driver and of NCCL, through ctypes and under their real names."""

from __future__ import annotations

import ctypes as c
import os
from pathlib import Path

__all__ = ["BFLOAT16", "FLOAT32", "Communicator", "CudaError", "Device", "NcclError", "unique_id"]

FLOAT32, BFLOAT16 = 7, 9
_SUM = 0
UNIQUE_ID_BYTES = 128


class CudaError(RuntimeError):
    """A driver call failed; the text is what a framework would print."""


class NcclError(RuntimeError):
    """An NCCL call failed."""


class _UniqueId(c.Structure):
    _fields_ = (("internal", c.c_char * UNIQUE_ID_BYTES),)


def _load(name: str) -> c.CDLL:
    folder = os.environ.get("TOCSIN_SIM_LIB")
    return c.CDLL(str(Path(folder) / name) if folder else name)


class Device:
    """One device with a stream. Launches and copies return at once; `synchronize` waits for the queue."""

    def __init__(self) -> None:
        self._cuda = _load("libcuda.so.1")
        self._cuda.cuMemAlloc_v2.argtypes = (c.c_void_p, c.c_size_t)
        self._cuda.cuMemcpyHtoDAsync_v2.argtypes = (c.c_uint64, c.c_void_p, c.c_size_t, c.c_void_p)
        device, context, module, stream = c.c_int(), c.c_void_p(), c.c_void_p(), c.c_void_p()
        self._check("cuInit", 0)
        self._check("cuDeviceGet", c.byref(device), 0)
        self._check("cuDevicePrimaryCtxRetain", c.byref(context), device)
        self._check("cuCtxSetCurrent", context)
        self._check("cuModuleLoadData", c.byref(module), b"\x7fELF")
        self._check("cuStreamCreate", c.byref(stream), 1)
        self._module = module
        self.stream = stream
        self._launch = self._cuda.cuLaunchKernel
        self._launch.argtypes = (c.c_void_p, *(c.c_uint,) * 7, c.c_void_p, c.c_void_p, c.c_void_p)

    def _check(self, name: str, *arguments: object) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result != 0:
            text = c.c_char_p()
            self._cuda.cuGetErrorName(result, c.byref(text))
            raise CudaError(f"CUDA error: {(text.value or b'unknown').decode()} ({result}) in {name}")

    def function(self, name: str) -> c.c_void_p:
        """A kernel by name."""
        function = c.c_void_p()
        self._check("cuModuleGetFunction", c.byref(function), self._module, name.encode())
        return function

    def launch(self, function: c.c_void_p, blocks: int) -> None:
        """Launch a grid of so many blocks."""
        result = self._launch(function, blocks, 1, 1, 256, 1, 1, 0, self.stream, None, None)
        if result != 0:
            raise CudaError(f"CUDA error: launch failed ({result})")

    def allocate(self, size: int) -> int:
        """Reserve device memory."""
        address = c.c_uint64()
        self._check("cuMemAlloc_v2", c.byref(address), size)
        return address.value

    def copy_in(self, address: int, host: c.Array[c.c_char]) -> None:
        """Copy a host buffer to the device, asynchronously."""
        self._check("cuMemcpyHtoDAsync_v2", address, host, len(host), self.stream)

    def synchronize(self) -> None:
        """Wait until the stream is empty."""
        self._check("cuStreamSynchronize", self.stream)


def unique_id() -> bytes:
    """A new communicator's id, to be handed to all its ranks."""
    made = _UniqueId()
    result = _load("libnccl.so.2").ncclGetUniqueId(c.byref(made))
    if result != 0:
        raise NcclError(f"NCCL error {result} in ncclGetUniqueId")
    return bytes(made)


class Communicator:
    """One rank's end of a communicator; creating it waits for the other ranks."""

    def __init__(self, device: Device, identifier: bytes, ranks: int, rank: int) -> None:
        self._nccl = _load("libnccl.so.2")
        self._nccl.ncclCommInitRank.argtypes = (c.c_void_p, c.c_int, _UniqueId, c.c_int)
        self._nccl.ncclAllReduce.argtypes = (
            *(c.c_uint64, c.c_uint64, c.c_size_t, c.c_int, c.c_int),
            *(c.c_void_p, c.c_void_p),
        )
        self._device = device
        self._comm = c.c_void_p()
        self._check(
            "ncclCommInitRank", c.byref(self._comm), ranks, _UniqueId.from_buffer_copy(identifier), rank
        )

    def _check(self, name: str, *arguments: object) -> None:
        result = getattr(self._nccl, name)(*arguments)
        if result != 0:
            raise NcclError(f"NCCL error {result} in {name}")

    def all_reduce(self, buffer: int, count: int, kind: int = BFLOAT16) -> None:
        """Sum a buffer over all ranks, in place, on the device's stream."""
        self._check("ncclAllReduce", buffer, buffer, count, kind, _SUM, self._comm, self._device.stream)
