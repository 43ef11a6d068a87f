from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
import ray
import rl_insight as insight
insight.init(config={"server": {"backend": "ray", "url": "http://127.0.0.1:1"}})
insight.metric_count("steps")
print(ray.is_initialized(), insight.get_status())
for backend in ("nonsense", ""):
    try:
        insight.init(config={"server": {"backend": backend}})
    except ValueError as error:
        print("ValueError", error)
insight.init(config={"server": {"backend": "memory"}})
insight.metric_count("steps")
print(insight.flush(), insight.get_status()["recording"])
"""


def test_init_with_ray_before_ray_is_initialized_warns_and_starts_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120, cwd=tmp_path
    )
    warning, state, refused, empty, later = done.stdout.splitlines()
    assert warning.startswith("WARNING RL-Insight is not recording: Ray is not initialized.")
    assert state == "False {'recording': False}"
    assert refused.startswith("ValueError unknown server.backend 'nonsense'")
    assert empty.startswith("ValueError ")
    assert later == "True True"
