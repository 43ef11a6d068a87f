"""SkyRL's own callback handler and timer with our callback."""

import asyncio
import importlib.util
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl_insight.integrations import hooks

SKYRL = Path(__file__).parents[2] / ".originals" / "skyrl" / "skyrl" / "train" / "utils"
TIMER = "\nclass Timer:\n"


@pytest.fixture
def skyrl(monkeypatch):
    """The real `callbacks.py` and `Timer`, without the rest of SkyRL, which needs torch and vLLM."""
    if not (SKYRL / "callbacks.py").exists():
        pytest.skip("SkyRL is not installed: `make originals` installs it")
    for name in ("skyrl", "skyrl.train", "skyrl.train.utils"):
        package = types.ModuleType(name)
        package.__path__ = []
        monkeypatch.setitem(sys.modules, name, package)
    spec = importlib.util.spec_from_file_location("skyrl.train.utils.callbacks", SKYRL / "callbacks.py")
    callbacks = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, callbacks)
    spec.loader.exec_module(callbacks)
    source = (SKYRL / "utils.py").read_text()
    body = source[source.index(TIMER) + 1 :].split("\n\n\n")[0]
    utils = types.ModuleType("skyrl.train.utils.utils")
    import time

    silent = SimpleNamespace(opt=lambda **_: SimpleNamespace(info=lambda _: None))
    utils.__dict__.update(time=time, logger=silent)
    exec(body, utils.__dict__)
    monkeypatch.setitem(sys.modules, utils.__name__, utils)
    monkeypatch.delitem(sys.modules, "rl_insight.integrations.skyrl", raising=False)
    monkeypatch.setattr(hooks._finder, "patches", {})  # other tests may wait for these modules, too
    yield SimpleNamespace(callbacks=callbacks, Timer=utils.Timer)
    sys.modules.pop("rl_insight.integrations.skyrl", None)


def test_callback_records_steps_metrics_and_timed_phases(insight_capture, skyrl):
    from rl_insight.integrations.skyrl import InsightSkyRLCallback

    handler = skyrl.callbacks.CallbackHandler([InsightSkyRLCallback()])
    control = skyrl.callbacks.TrainingControl()
    trainer = SimpleNamespace(cfg=SimpleNamespace(trainer=SimpleNamespace(project_name="math", run_name="grpo")))

    def fire(event, step, **fields):
        state = skyrl.callbacks.CallbackInput(global_step=step, epoch=0, total_steps=2, steps_per_epoch=2, **fields)
        getattr(handler, event)(trainer, state, control)

    async def generate():
        async with skyrl.Timer("generate", timings):
            await asyncio.sleep(0)

    timings = {}
    fire("on_train_start", 0)
    for step in (1, 2):
        fire("on_step_start", step)
        with skyrl.Timer("step", timings):
            asyncio.run(generate())
            with skyrl.Timer("sync_weights", timings):
                pass
        fire("on_step_end", step, metrics={})
        fire("on_log", step, logs={"reward/avg_raw_reward": step / 10})
    fire("on_eval_start", 2)
    fire("on_eval_end", 2, metrics={})
    fire("on_save", 2, ckpt_path="/checkpoints/2")
    fire("on_train_end", 2)
    insight_capture.flush()
    assert set(timings) == {"step", "generate", "sync_weights"}
    values = {s.step: s.value for s in insight_capture.metrics if s.metric == "reward_avg_raw_reward"}
    assert values == {1: 0.1, 2: 0.2}
    found = [(s.name, s.step) for s in insight_capture.spans if s.segment == "state_interval"]
    phases = [(name, step) for step in (1, 2) for name in ("generate", "sync_weights")]
    assert sorted(found) == sorted([*phases, ("evaluate", 2)])
    assert [event.name for event in insight_capture.events] == ["rl_insight.config", "checkpoint_saved"]
