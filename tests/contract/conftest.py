from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def transport_helpers():
    """The module `tests/transport/receiver.py`: Receiver, make_batch, wait_until."""
    name = "transport_receiver"
    if name not in sys.modules:
        path = Path(__file__).parent.parent / "transport" / "receiver.py"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
