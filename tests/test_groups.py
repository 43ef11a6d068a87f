"""Tests that share a server or a cluster run in one worker; otherwise, they silently interfere with each other."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("groups")
def test_workers_know_the_groups_of_tests(request):
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("tests are not sent to workers by their groups: use --dist loadgroup, as `make test` does")
    assert request.node.nodeid.endswith("@groups")
