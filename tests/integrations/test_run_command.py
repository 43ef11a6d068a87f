"""`rl-insight run` and the mirrors of real tracker libraries: the program itself does not use RL-Insight."""

import ast
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

from rl_insight import activation
from rl_insight.cli import main
from tests.compat.conftest import Programs

FREE_PORTS = ("port=0", "otlp_http_port=0", "otlp_grpc_port=0")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("server")
    assert main(["server", "start", "--detach", "--data-dir", str(directory), *FREE_PORTS]) == 0
    record = json.loads((directory / "server.json").read_text())
    yield record["url"]
    main(["server", "stop", "--data-dir", str(directory)])


@pytest.fixture
def launch(tmp_path, server):
    def start(*command, run_id="mirrored", options=(), **environment):
        named = () if run_id is None else ("--run-id", run_id)
        words = [sys.executable, "-m", "rl_insight.cli", "run", "--no-hardware", *named, *options, "--"]
        return subprocess.Popen(
            [*words, *command],
            cwd=tmp_path,
            env=os.environ | {"RL_INSIGHT_SERVER_URL": server} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def ask(server):
    def get(path):
        with urllib.request.urlopen(f"{server}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)

    return get


def script(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def values_by_step(ask, run_id, name):
    lines = ask(f"metrics/range?run={run_id}&metric={name}&axis=step&start_ns=0&end_ns={2**61}&width=1")
    return {step: value for line in lines for step, value in zip(line["x"], line["y"], strict=True)}


LIBRARIES = {
    "wandb": """
        import os
        os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
        import wandb
        wandb.init(project="p", dir=".")
        for step in range(3):
            wandb.log({"train/loss": 1.0 / (step + 1), "sample": wandb.Html("<p>")}, step=step)
        wandb.finish()
    """,
    "tensorboardX": """
        from tensorboardX import SummaryWriter
        writer = SummaryWriter("logs")
        for step in range(3):
            writer.add_scalar("train/loss", 1.0 / (step + 1), step)
        writer.close()
    """,
    "mlflow": """
        import os
        os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
        import mlflow
        mlflow.set_tracking_uri("file:./mlruns")
        with mlflow.start_run():
            mlflow.log_metric("train/loss", 1.0, step=0)
            for step in range(1, 3):
                mlflow.log_metrics({"train/loss": 1.0 / (step + 1)}, step=step)
    """,
    "trackio": """
        import os
        os.environ["TRACKIO_DIR"] = os.getcwd()
        import trackio
        run = trackio.init(project="p", embed=False)
        for step in range(3):
            trackio.log({"train/loss": 1.0 / (step + 1)}, step=step)
        trackio.finish()
    """,
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_program_that_only_knows_its_tracker_is_mirrored(tmp_path, launch, ask, library):
    pytest.importorskip(library)
    run_id = f"mirror-{library}"
    program = launch(sys.executable, script(tmp_path, LIBRARIES[library]), run_id=run_id)
    _, errors = program.communicate(timeout=120)
    assert program.returncode == 0, errors
    assert values_by_step(ask, run_id, "train_loss") == pytest.approx({0: 1.0, 1: 0.5, 2: 1 / 3})


def test_exit_status_and_last_lines_of_stderr_are_recorded(tmp_path, launch, ask):
    program = launch(
        sys.executable,
        script(tmp_path, "import sys\nprint('kept out')\nsys.stderr.write('CUDA out of memory\\n')\nsys.exit(3)\n"),
        run_id="failing",
    )
    output, errors = program.communicate(timeout=60)
    assert program.returncode == 3
    assert output.splitlines()[-1] == "kept out"
    assert "CUDA out of memory" in errors
    ended = next(event for event in ask("events?run=failing") if event["name"] == "command_ended")
    assert ended["attributes"]["exit_code"] == 3
    [line] = [log for log in ask("logs?run=failing") if log["level"] == 40]
    assert line["attributes"]["stderr"].endswith("CUDA out of memory")


def test_a_command_that_is_killed_is_told_apart(tmp_path, launch, ask):
    text = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    program = launch(sys.executable, script(tmp_path, text), run_id="killed")
    program.communicate(timeout=60)
    assert program.returncode == 128 + signal.SIGKILL
    ended = next(event for event in ask("events?run=killed") if event["name"] == "command_ended")
    assert ended["attributes"]["signal"] == "SIGKILL"


def test_sigterm_reaches_the_command_and_the_end_is_still_recorded(tmp_path, launch, ask, wait_until):
    text = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        open("ready", "w").close()
        time.sleep(60)
    """
    program = launch(sys.executable, script(tmp_path, text), run_id="terminated")
    wait_until((tmp_path / "ready").exists)
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=60)
    assert program.returncode == 7
    assert [event["name"] for event in ask("events?run=terminated")].count("command_ended") == 1


def test_processes_of_the_command_join_its_run(tmp_path, launch, ask):
    """Child processes are part of the same run, whatever names they pass to `init()`."""
    text = """
        import subprocess, sys
        import rl_insight as insight
        insight.init("math", "grpo-7b", role="trainer")
        insight.metric_gauge("parent", 1.0)
        subprocess.run([sys.executable, "-c", "import rl_insight as i; i.metric_gauge('child', 2.0)"], check=True)
    """
    program = launch(sys.executable, script(tmp_path, text), run_id="family")
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert {metric["name"] for metric in ask("metrics?run=family")} >= {"parent", "child"}
    roles = [process["role"] for process in ask("processes?run=family")]
    assert roles.count("launcher") == 1
    assert len(roles) == 3


def test_tasks_of_one_slurm_step_are_one_run(tmp_path, launch, ask):
    """`srun rl-insight run -- python train.py`: every task has its own command, and all record into one run."""
    program = script(tmp_path, LIBRARIES["tensorboardX"])
    step = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    tasks = [
        launch(sys.executable, program, run_id=None, **step, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in "01"
    ]
    for task in tasks:
        _, errors = task.communicate(timeout=120)
        assert task.returncode == 0, errors
    [run_id] = [run["run_id"] for run in ask("runs") if "slurm-4711-3" in run["run_id"]]
    processes = ask(f"processes?run={run_id}")
    assert sorted((one["role"], one["rank"]) for one in processes) == [
        ("", 0),
        ("", 1),
        ("launcher", 0),
        ("launcher", 1),
    ]
    assert values_by_step(ask, run_id, "train_loss") == pytest.approx({0: 1.0, 1: 0.5, 2: 1 / 3})


@pytest.mark.slow
def test_workers_of_a_ray_job_join_the_run_of_the_command(tmp_path, launch, ask):
    text = """
        import ray
        ray.init(num_cpus=1, _node_ip_address="127.0.0.1", include_dashboard=False, logging_level="ERROR")

        @ray.remote
        def work():
            from tensorboardX import SummaryWriter
            with SummaryWriter("worker") as writer:
                writer.add_scalar("worker/loss", 2.0, 7)
            import rl_insight as insight
            with insight.session(task_id="a"):
                pass
            insight.flush()

        ray.get(work.remote())
        ray.shutdown()
    """
    pytest.importorskip("ray", reason="Ray is not installed")
    program = launch(sys.executable, script(tmp_path, text), run_id="ray-job")
    _, errors = program.communicate(timeout=300)
    assert program.returncode == 0, errors
    assert values_by_step(ask, "ray-job", "worker_loss") == {7: 2.0}
    assert [one["task_id"] for one in ask("sessions?run=ray-job")["sessions"]] == ["a"]


def test_an_unknown_command_is_one_sentence(launch):
    program = launch("no-such-program-anywhere")
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 2
    assert "cannot run 'no-such-program-anywhere'" in errors
    assert "Traceback" not in errors


def test_a_user_s_own_sitecustomize_still_runs(tmp_path, launch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.marked = True\n")
    program = launch(sys.executable, "-c", "print(marked)", PYTHONPATH=str(tmp_path / "site"))
    output, errors = program.communicate(timeout=60)
    assert output.splitlines()[-1] == "True", errors


def test_a_library_of_another_shape_is_left_alone_with_one_warning(tmp_path, launch):
    """A future `wandb` without `Run.log` runs as if RL-Insight were not installed."""
    package = tmp_path / "lib" / "wandb" / "sdk"
    package.mkdir(parents=True)
    (tmp_path / "lib" / "wandb" / "__init__.py").write_text("from wandb.sdk import wandb_run\n")
    (package / "__init__.py").write_text("")
    (package / "wandb_run.py").write_text("class Run:\n    def record(self, data):\n        print('recorded', data)\n")
    text = "import wandb\nwandb.wandb_run.Run().record({'loss': 1})\n"
    program = launch(sys.executable, script(tmp_path, text), PYTHONPATH=str(tmp_path / "lib"))
    output, errors = program.communicate(timeout=60)
    assert program.returncode == 0
    assert "recorded {'loss': 1}" in output
    assert (
        errors.count("the integration with wandb failed (wandb.sdk.wandb_run); the program continues without it") == 1
    )


def test_a_mirror_that_fails_never_reaches_the_program(tmp_path, launch):
    text = """
        from tensorboardX import SummaryWriter
        from rl_insight.integrations import mirrors
        mirrors._record = lambda data, step: 1 / 0
        writer = SummaryWriter("logs")
        writer.add_scalar("loss", 1.0, 0)
        writer.add_scalar("loss", 2.0, 1)
        writer.close()
        print("done")
    """
    program = launch(sys.executable, script(tmp_path, text))
    output, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert output.splitlines()[-1] == "done"
    assert errors.count("the hook on SummaryWriter.add_scalar failed") == 1


def test_switched_off_nothing_is_patched(tmp_path, launch):
    text = "import tensorboardX.writer as w\nprint(hasattr(w.SummaryWriter.add_scalar, '_rl_insight'))\n"
    for switch, expected in (("0", "False"), ("1", "True")):
        program = launch(sys.executable, script(tmp_path, text), RL_INSIGHT_AUTO=switch)
        output, errors = program.communicate(timeout=60)
        assert output.splitlines()[-1] == expected, errors


def test_only_a_process_that_imports_a_library_pays_for_the_integrations(tmp_path, launch):
    text = """
        import sys
        print("rl_insight" in sys.modules)
        import tensorboardX
        print("rl_insight.integrations.mirrors" in sys.modules)
    """
    program = launch(sys.executable, script(tmp_path, text))
    output, errors = program.communicate(timeout=60)
    assert output.splitlines()[-2:] == ["False", "True"], errors


def test_every_library_of_an_integration_is_waited_for():
    path = f"{activation.PATH}/sitecustomize.py"
    libraries = next(
        node.value.args[0]
        for node in ast.walk(ast.parse(Path(path).read_text()))
        if isinstance(node, ast.Assign) and node.targets[0].id == "LIBRARIES"
    )
    code = (
        "from rl_insight.activation import activate\n"
        "from rl_insight.integrations import hooks\n"
        "activate()\n"
        "print(*sorted({name.partition('.')[0] for name in hooks._finder.patches}))"
    )
    environ = os.environ | {"RL_INSIGHT_SERVER_URL": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(ast.literal_eval(libraries))


def run_areal(tmp_path, launch, run_id, text):
    """Run a program with AReaL 1.0.4 itself, except for the `__init__` of its package, which imports its engines."""
    original = Programs(tmp_path).original("areal") / "areal"
    package = tmp_path / "lib" / "areal"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"__path__ = [{str(original)!r}]\n")
    folders = f"{tmp_path / 'lib'}:{original.parent}"
    program = launch(sys.executable, script(tmp_path, text), run_id=run_id, PYTHONPATH=folders)
    _, errors = program.communicate(timeout=120)
    assert program.returncode == 0, errors


AREAL_TRACER = """
    from areal.utils import perf_tracer
    from areal.utils.perf_tracer import session_context, trace_scope, trace_session_phase

    settings = {"enabled": True, "experiment_name": "math", "trial_name": "t0", "fileroot": "files"}
    perf_tracer.configure({**settings, "session_tracer": {"enabled": True}}, rank=0, role="rollout")
    with trace_scope("train.step", args={"global_step": 3}):
        pass

    @session_context()
    def episode():
        with trace_session_phase("generate"):
            pass

    perf_tracer.register_task(17)
    perf_tracer.set_task_id(17)
    episode()
    perf_tracer.trace_session_event("mark_finalized", task_id=17, status="accepted")
    perf_tracer.save(force=True)
"""


def test_what_areal_traces_is_recorded(tmp_path, launch, ask):
    run_areal(tmp_path, launch, "areal-traces", AREAL_TRACER)
    [session] = ask("sessions?run=areal-traces")["sessions"]
    assert (session["task_id"], session["status"]) == ("17", "accepted")
    assert [span["step"] for span in ask("spans?run=areal-traces&name=train.step")] == [3]
    assert list(tmp_path.glob("files/**/sessions-r0.jsonl"))


AREAL_METRICS = """
    import sys, types
    from dataclasses import dataclass

    import swanlab, tensorboardX, trackio, wandb

    def module(name, **contents):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(contents)
        return sys.modules[name]

    # What this module of AReaL imports of PyTorch, of the engines' configuration, and for its tables.
    module("torch").distributed = module("torch.distributed", is_initialized=lambda: False)
    module("areal.api", FinetuneSpec=object)
    module("areal.api.cli_args", BaseExperimentConfig=object, StatsLoggerConfig=int)
    module("tabulate", tabulate=lambda rows, **_: "")

    class Off:
        mode, path = "disabled", None
        def __getattr__(self, name):
            return None

    class Trackers:
        experiment_name, trial_name, fileroot = "math", "t0", "files"
        wandb = swanlab = trackio = tensorboard = Off()

    @dataclass
    class Experiment:
        lr: float = 1e-6
        stats_logger = Trackers()

    from areal.utils.stats_logger import StatsLogger

    length = types.SimpleNamespace(total_train_epochs=1, steps_per_epoch=2, total_train_steps=2)
    logger = StatsLogger(Experiment(), length)
    for step in range(2):
        logger.commit(0, step, step, {"ppo/loss": 1.0 / (step + 1)})
    logger.close()
"""


def test_what_areal_logs_is_recorded(tmp_path, launch, ask):
    pytest.importorskip("swanlab")
    run_areal(tmp_path, launch, "areal-logs", AREAL_METRICS)
    assert values_by_step(ask, "areal-logs", "ppo_loss") == {0: 1.0, 1: 0.5}
    [config] = [event for event in ask("events?run=areal-logs") if event["name"] == "rl_insight.config"]
    assert config["attributes"]["lr"] == 1e-6


def test_error_output_stays_a_terminal_where_it_was_one(tmp_path, server):
    """Progress bars check `isatty`: under `run` the result must be the same as without it."""
    code = "import sys; sys.stderr.write(f'terminal {sys.stderr.isatty()}\\n')"
    reading, writing = os.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "rl_insight.cli", "run", "--no-hardware", "--", sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"RL_INSIGHT_SERVER_URL": server},
        stderr=writing,
        stdout=subprocess.DEVNULL,
    )
    os.close(writing)
    seen = b""
    deadline = time.monotonic() + 60
    while b"terminal" not in seen and time.monotonic() < deadline:
        seen += os.read(reading, 4096)
    program.wait(60)
    os.close(reading)
    assert b"terminal True" in seen
