"""A metrics page server, a pynvml without a GPU, and other helpers of the hardware tests."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, SimpleNamespace

LABELS = 'IsHeadNode="false",RayNodeType="worker",SessionName="s",Version="2.60.0",ip="10.0.0.1"'


class PageServer:
    """Serves one page; `hang` keeps clients waiting, `status` and `raw` make it respond incorrectly."""

    def __init__(self, page=""):
        self.page = page
        self.status = 200
        self.raw = None
        self.hang = threading.Event()
        self.release = threading.Event()
        self.requests = 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                owner.requests += 1
                if owner.hang.is_set():
                    owner.release.wait(60)
                if owner.raw is not None:
                    self.wfile.write(owner.raw)
                    return
                body = (owner.page() if callable(owner.page) else owner.page).encode()
                self.send_response(owner.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_args: None  # a client that stopped reading
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/metrics"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self):
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


def ray_page(*, gpus=(), ram=None, sent=None):
    """A Ray node's page: `gpus` are dicts with index, util, mib."""
    lines = ['ray_component_rss_mb{Component="raylet",pid="1"} 7']
    for gpu in gpus:
        index = f',GpuIndex="{gpu["index"]}",GpuUuid="GPU-{gpu["index"]}"' if "index" in gpu else ""
        for name, key in (("gpus_utilization", "util"), ("gram_used", "mib"), ("gram_available", "free_mib")):
            if key in gpu:
                lines.append(f"ray_node_{name}{{{LABELS}{index}}} {gpu[key]}")
    if ram is not None:
        lines.append(f"ray_node_mem_used{{{LABELS}}} {ram}")
    if sent is not None:
        lines.append(f"ray_node_network_sent{{{LABELS}}} {sent}")
    return "\n".join(lines) + "\n"


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"NVML error {value}")
        self.value = value


NOT_SUPPORTED, UNINITIALIZED, GPU_IS_LOST, DRIVER_NOT_LOADED = 3, 1, 15, 9


class FakeGpu:
    def __init__(self, uuid, **answers):
        self.uuid = uuid
        self.answers = {"util": (31, 12), "memory": (10 * 2**30, 141 * 2**30), "power": 350_500, "energy": 1_000_000}
        self.answers.update(answers)
        self.slices = []
        self.processes = {4242: 9 * 2**30}
        self.error = None

    def ask(self, name):
        if self.error is not None:
            raise NVMLError(self.error)
        if self.answers.get(name) is None:
            raise NVMLError(NOT_SUPPORTED)
        return self.answers[name]


class FakeNvml(ModuleType):
    """Behaves like pynvml, with a list of `FakeGpu`; `gone` is the error of a driver that disappeared."""

    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = 0, 1
    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028  # noqa: N815  # pynvml's own name

    def __init__(self, *gpus):
        super().__init__("pynvml")
        self.gpus = list(gpus)
        self.gone = None
        self.inits = self.shutdowns = 0

    def _check(self):
        if self.gone is not None:
            raise NVMLError(self.gone)

    def _ask(self, gpu, name):
        self._check()
        return gpu.ask(name)

    def nvmlInit(self):
        self._check()
        self.inits += 1

    def nvmlShutdown(self):
        self._check()
        self.shutdowns += 1

    def nvmlDeviceGetCount(self):
        self._check()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        self._check()
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu):
        self._check()
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu):
        return "Fake H200"

    def nvmlDeviceGetUtilizationRates(self, gpu):
        busy, memory = self._ask(gpu, "util")
        return SimpleNamespace(gpu=busy, memory=memory)

    def nvmlDeviceGetMemoryInfo(self, gpu, version=None):
        used, total = self._ask(gpu, "memory")
        return SimpleNamespace(used=used, total=total)

    def nvmlDeviceGetPowerUsage(self, gpu):
        return self._ask(gpu, "power")

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu):
        return self._ask(gpu, "limit")

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        return self._ask(gpu, "temperature")

    def nvmlDeviceGetClockInfo(self, gpu, clock):
        return self._ask(gpu, "clock")

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):
        return self._ask(gpu, "energy")

    def nvmlDeviceGetPcieThroughput(self, gpu, counter):
        return self._ask(gpu, "pcie")

    def nvmlDeviceGetFieldValues(self, gpu, fields):
        sent = self._ask(gpu, "nvlink")
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=sent)) for _ in fields]

    def nvmlDeviceGetMigMode(self, gpu):
        if not gpu.slices:
            raise NVMLError(NOT_SUPPORTED)
        return (1, 1)

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu):
        return len(gpu.slices)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, number):
        if gpu.slices[number] is None:
            raise NVMLError(6)
        return gpu.slices[number]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):
        self._check()
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes.items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu):
        raise NVMLError(NOT_SUPPORTED)
