from __future__ import annotations

import pytest

from tests.transport import receiver


@pytest.fixture(scope="session")
def transport_helpers():
    """The module `tests/transport/receiver.py`: Receiver, make_batch."""
    return receiver
