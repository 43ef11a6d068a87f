"""Keeps the GPUs busy, to check readings under load: with PyTorch, CuPy, or only the driver.

python -m benchmarks.nvidia.load SECONDS
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

_SIDE = 8192
_FILL_BYTES = 4 * 1024**3


def run_load(seconds: float) -> str | None:
    """Keep every GPU busy for a while; returns the library that did, or None if none can."""
    for name, prepare in (("torch", _torch), ("cupy", _cupy), ("libcuda", _libcuda)):
        try:
            work = prepare()
        except Exception as error:  # missing, for another CUDA version, or no GPU: try the next
            print(f"{name}: {error!r}", file=sys.stderr)  # a command's output
            continue
        print(name, flush=True)  # signals the parent that the load is running
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            work()
        return name
    return None


def _torch() -> Callable[[], None]:
    torch: Any = importlib.import_module("torch")
    matrices = [
        torch.randn(_SIDE, _SIDE, device=f"cuda:{number}", dtype=torch.bfloat16)
        for number in range(torch.cuda.device_count())
    ]
    if not matrices:
        raise RuntimeError("no CUDA device")

    def work() -> None:
        for matrix in matrices:
            for _ in range(20):
                torch.mm(matrix, matrix)
        for number in range(len(matrices)):
            torch.cuda.synchronize(number)

    work()
    return work


def _cupy() -> Callable[[], None]:
    cupy: Any = importlib.import_module("cupy")
    matrix = cupy.ones((_SIDE, _SIDE), dtype=cupy.float32)

    def work() -> None:
        for _ in range(5):
            cupy.matmul(matrix, matrix)
        cupy.cuda.Device().synchronize()

    work()
    return work


def _libcuda() -> Callable[[], None]:
    """Fill memory repeatedly through the driver library, which needs no toolkit."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def check(status: int, what: str) -> None:
        if status != 0:
            raise RuntimeError(f"{what} returned {status}")

    check(cuda.cuInit(0), "cuInit")
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(_FILL_BYTES)), "cuMemAlloc")
    words = ctypes.c_size_t(_FILL_BYTES // 4)

    def work() -> None:
        for number in range(50):
            check(cuda.cuMemsetD32_v2(memory, ctypes.c_uint(number), words), "cuMemsetD32")
        check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")

    work()
    return work


if __name__ == "__main__":
    sys.exit(0 if run_load(float(sys.argv[1])) else 1)
