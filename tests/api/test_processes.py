"""Real processes: fork, spawn, and every way a program may end."""

from __future__ import annotations

import ast
import json
import os
import sys

import pytest


def test_program_that_never_calls_finish_still_delivers(program):
    program.run(
        """
        insight.init("p", "e", FILE, run_id="r")
        insight.metric_count("c", 5)
        with insight.trace_span("work"):
            pass
        """
    )
    assert program.names() == ["work"]
    assert program.batches()[-1].final


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("raise ValueError('unhandled')", 1),
        ("sys.exit(3)", 3),
        ("import threading; t = threading.Thread(target=sys.exit); t.start(); t.join()", 0),
        ("import threading; threading.Thread(target=lambda: insight.trace_event('late')).start()", 0),
    ],
)
def test_each_orderly_ending_delivers(program, ending, code):
    program.run(
        f"""
        insight.init("p", "e", FILE)
        insight.trace_event("before")
        {ending}
        """,
        expect=code,
    )
    assert "before" in program.names()
    assert ("late" in ending) == ("late" in program.names())
    assert program.batches()[-1].final


def test_hung_work_is_visible_after_a_crash(program):
    program.run(
        """
        import time
        insight.init("p", "e", {**FILE, "recorder": {"flush_interval_s": 0.01}})
        os.makedirs(FILE["file"]["directory"], exist_ok=True)
        insight.trace_span("hang", {"sample": 7}).__enter__()
        from rl_insight.transport import read_batches
        while not sum(len(batch.spans) for batch in read_batches(FILE["file"]["directory"])):
            time.sleep(0.01)
        os._exit(0)
        """
    )
    (span,) = program.records()
    assert (span.name, span.status, span.attributes) == ("hang", "open", {"sample": 7})


# -- fork


def test_forked_child_records_under_its_own_identity_in_the_same_run(program):
    program.run(
        """
        insight.init("p", "e", FILE, run_id="r", role="trainer", rank=2)
        insight.metric_count("parent_before", 1)
        for number in range(100):
            insight.trace_event(f"parent {number}")
        insight.set_step(4)
        pid = os.fork()
        if pid == 0:
            insight.trace_event("child")
            insight.metric_count("in_child")
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        insight.trace_event("parent after")
        """
    )
    processes = program.processes()
    assert len(processes) == 2
    assert {process.run_id for process in processes.values()} == {"r"}
    assert {(process.role, process.rank) for process in processes.values()} == {("trainer", 2)}
    assert len({process.pid for process in processes.values()}) == 2
    events = [record for record in program.records() if type(record).__name__ == "EventRecord"]
    assert len(events) == 102, "nothing is lost and nothing is sent twice"
    by_process = {}
    for event in events:
        by_process.setdefault(event.process_id, []).append(event.name)
    assert sorted(map(len, by_process.values())) == [1, 101]
    (child,) = [event for event in events if event.name == "child"]
    assert child.step == 4
    metrics = {(r.process_id, r.metric) for r in program.records() if type(r).__name__ == "SampleRecord"}
    assert sorted(metric for _, metric in metrics) == ["in_child", "parent_before"]


def test_span_open_at_the_fork_is_the_parent_of_the_childs_and_ends_once(program):
    program.run(
        """
        insight.init("p", "e", FILE)
        with insight.trace_span("outer"), insight.trace_state("busy", "l"):
            pid = os.fork()
            if pid == 0:
                with insight.trace_span("inner"):
                    pass
        if pid == 0:
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        """
    )
    spans = [record for record in program.records() if type(record).__name__ == "SpanRecord"]
    finished = {span.name: span for span in spans if span.status == "ok"}
    assert sorted(span.name for span in spans if span.status == "ok") == ["busy", "inner", "outer"]
    assert finished["inner"].parent_id == finished["busy"].span_id
    assert finished["inner"].process_id != finished["outer"].process_id
    assert len({span.span_id for span in finished.values()}) == 3


def test_locks_held_at_fork_time_do_not_stop_the_child(program):
    program.run(
        """
        import threading
        insight.init("p", "e", FILE)
        monitor = insight.init.__self__
        recorder, transport = monitor._pipeline.recorder, monitor._pipeline.transport
        state = insight.trace_state("busy", "l")
        state.__enter__()
        held, release = threading.Event(), threading.Event()

        read_clock = recorder.now

        def read_clock_slowly():
            if threading.current_thread() is holder:  # in the middle of the lanes' turn
                held.set()
                release.wait()
            return read_clock()

        def hold():
            with monitor._lock, recorder.losses._lock, recorder.wake._cond, transport._lock:
                with monitor._pipeline.flusher._flushed, insight.trace_state("other", "m"):
                    pass

        holder = threading.Thread(target=hold, daemon=True)
        recorder.now = read_clock_slowly
        holder.start()
        held.wait()
        pid = os.fork()
        if pid == 0:
            import faulthandler
            faulthandler.dump_traceback_later(30, exit=True)
            state.__exit__(None, None, None)
            with insight.trace_state("busy", "l") as span:
                span.set_status("no such status")
                insight.trace_event("child")
            insight.finish()
            os._exit(0)
        release.set()
        assert os.waitpid(pid, 0)[1] == 0
        holder.join()
        state.__exit__(None, None, None)
        """
    )
    assert "child" in program.names()


def test_forks_of_forks(program):
    program.run(
        """
        insight.init("p", "e", FILE, run_id="r")
        for depth in range(3):
            pid = os.fork()
            if pid:
                assert os.waitpid(pid, 0)[1] == 0
                break
            insight.trace_event(f"depth {depth}")
        """
    )
    assert program.names() == ["depth 0", "depth 1", "depth 2"]
    assert len(program.processes()) == 4
    assert {process.run_id for process in program.processes().values()} == {"r"}


def test_fork_while_nothing_is_recorded_is_left_alone(program):
    program.run(
        """
        pid = os.fork()
        if pid == 0:
            insight.metric_count("c")
            sys.exit(0 if insight.get_status() == {"recording": False} else 1)
        assert os.waitpid(pid, 0)[1] == 0
        """
    )
    assert not program.events.exists()


# -- multiprocessing


WORKER = """
def work(number):
    insight.metric_count("work", 1)
    with insight.trace_span(f"task {number}"):
        pass

if __name__ == "__main__":
    import multiprocessing
    insight.init("p", "e", FILE, run_id="r", role="trainer", rank=0)
    context = multiprocessing.get_context("METHOD")
    children = [context.Process(target=work, args=(number,)) for number in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_children_join_the_run_without_init_and_deliver_at_exit(program, method):
    program.run(WORKER.replace("METHOD", method))
    assert program.names() == ["task 0", "task 1", "task 2"]
    children = {r.process_id for r in program.records() if type(r).__name__ == "SpanRecord"}
    assert len(children) == 3
    assert {process.run_id for process in program.processes().values()} == {"r"}
    assert {process.project for process in program.processes().values()} == {"p"}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pool_workers_join_the_run(program, method):
    program.run(
        f"""
        def work(number):
            insight.metric_count("work")
            return number

        if __name__ == "__main__":
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor
            insight.init("p", "e", FILE, run_id="r")
            with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("{method}")) as pool:
                assert list(pool.map(work, range(20))) == list(range(20))
        """
    )
    totals = {}
    for record in program.records():
        totals[record.process_id] = max(totals.get(record.process_id, 0), record.value)
    assert sum(totals.values()) == 20.0


def test_child_with_an_init_of_its_own_joins_the_run_of_its_parent(program):
    program.run(
        """
        def work(rank):
            insight.init("p", "e", FILE, role="rollout", rank=rank)
            insight.trace_event(f"rank {rank}")

        if __name__ == "__main__":
            import multiprocessing
            insight.init("p", "e", FILE)
            context = multiprocessing.get_context("spawn")
            children = [context.Process(target=work, args=(rank,)) for rank in range(2)]
            for child in children:
                child.start()
            for child in children:
                child.join()
            insight.trace_event("parent")
        """
    )
    assert program.names() == ["parent", "rank 0", "rank 1"]
    processes = program.processes().values()
    assert len({process.run_id for process in processes}) == 1
    assert sorted((process.role, process.rank) for process in processes if process.role) == [
        ("rollout", 0),
        ("rollout", 1),
    ]


def test_child_whose_init_names_nothing_joins_the_run_of_its_parent(program):
    program.run(
        """
        def work(rank):
            insight.init(role="rollout", rank=rank)
            insight.trace_event(f"rank {rank}")

        if __name__ == "__main__":
            import multiprocessing
            insight.init("p", "e", FILE)
            context = multiprocessing.get_context("spawn")
            child = context.Process(target=work, args=(1,))
            child.start()
            child.join()
        """
    )
    (process,) = [one for one in program.processes().values() if one.role == "rollout"]
    assert (process.project, process.experiment_name, process.rank) == ("p", "e", 1)
    assert len({one.run_id for one in program.processes().values()}) == 1


def test_child_of_another_experiment_has_a_run_of_its_own(program):
    program.run(
        """
        import subprocess
        if len(sys.argv) > 1:
            insight.init("p", "other", FILE)
            insight.trace_event("child")
        else:
            insight.init("p", "e", FILE)
            subprocess.run([sys.executable, __file__, "child"], check=True)
        """
    )
    assert len({process.run_id for process in program.processes().values()}) == 2


def test_subprocess_joins_the_run_and_the_trace(program):
    program.run(
        """
        import json
        import subprocess
        if len(sys.argv) > 1:
            with insight.attach(json.loads(sys.argv[1])), insight.trace_span("callee"):
                pass
        else:
            insight.init("p", "e", FILE, run_id="r")
            with insight.trace_span("caller"), insight.step(9):
                subprocess.run([sys.executable, __file__, json.dumps(insight.inject())], check=True)
        """
    )
    spans = {record.name: record for record in program.records() if record.status == "ok"}
    assert spans["callee"].parent_id == spans["caller"].span_id
    assert spans["callee"].trace_id == spans["caller"].trace_id
    assert spans["callee"].step == 9
    assert spans["callee"].process_id != spans["caller"].process_id


def test_after_finish_children_do_not_join(program):
    program.run(
        """
        import subprocess
        if len(sys.argv) > 1:
            insight.trace_event("child")
        else:
            insight.init("p", "e", FILE)
            insight.finish()
            subprocess.run([sys.executable, __file__, "child"], check=True)
        """
    )
    assert program.names() == []


@pytest.mark.parametrize("left", ["", "{", "[]", '{"server": 5}', '{"server": {"backend": "pigeon"}}', "null"])
def test_broken_inheritance_never_reaches_the_caller(program, left):
    program.run('insight.metric_count("c")\nprint(insight.get_status())', env={"RL_INSIGHT_INHERIT": left})
    program.run('insight.init("p", "e", FILE)\ninsight.trace_event("own")', env={"RL_INSIGHT_INHERIT": left})
    assert program.names() == ["own"]


def test_inheritance_carries_no_rank(program):
    done = program.run(
        """
        insight.init("p", "e", FILE, rank=3)
        print(os.environ["RL_INSIGHT_INHERIT"])
        """
    )
    left = json.loads(done.stdout)
    assert (left["project"], left["rank"]) == ("p", None)


# -- importing


def test_importing_pulls_in_nothing_heavy(program):
    done = program.run(
        """
        heavy = ["omegaconf", "ray", "http.client", "ssl", "asyncio", "numpy", "duckdb", "multiprocessing", "yaml",
                 "torch", "fastapi", "pyarrow", "grpc", "prometheus_client", "pytest", "logging.handlers"]
        insight.metric_count("c")
        with insight.trace_span("s"):
            pass
        print([name for name in heavy if name in sys.modules])
        """
    )
    assert done.stdout.strip() == "[]"


def test_the_pytest_plugin_pulls_in_nothing_heavy(program):
    done = program.run(
        """
        import pytest
        loaded = set(sys.modules)
        import rl_insight.testing
        print(sorted({name.split(".")[0] for name in set(sys.modules) - loaded}))
        """
    )
    light = {
        "rl_insight",
        "msgspec",
        "typing_extensions",
        "difflib",
        "faulthandler",
        "hashlib",
        "_hashlib",
        "_blake2",
        "heapq",
        "_heapq",
    }
    assert set(ast.literal_eval(done.stdout)) <= light


def test_public_names_are_there_and_documented():
    import rl_insight as insight

    for name in insight.__all__:
        value = getattr(insight, name)
        assert name == "__version__" or value.__doc__, name
    version = tuple(map(int, insight.__version__.split(".")[:2]))
    assert version >= (1, 0)


def test_every_environment_of_the_tests_is_clean():
    assert "RL_INSIGHT_INHERIT" not in os.environ
    assert sys.modules["rl_insight.monitor"].default_monitor._pipeline is None


# -- workers that live briefly

POOL = """
    import multiprocessing, time

    def work(number):
        with insight.session(task_id=number), insight.trace_span(f"work {{number}}"):
            time.sleep(0.02)
        return number

    if __name__ == "__main__":
        insight.init("p", "e", FILE)
        with multiprocessing.get_context("{method}").Pool(3) as pool:
            assert pool.map(work, range(6)) == list(range(6))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_pool_lose_nothing_when_it_terminates_them(program, method):
    program.run(POOL.format(method=method))
    spans = [record for record in program.records() if type(record).__name__ == "SpanRecord"]
    finished = {span.name for span in spans if span.status == "ok"}
    assert {f"work {number}" for number in range(6)} <= finished
    sessions = {}
    for record in program.records():
        if type(record).__name__ == "SessionSnapshot":
            sessions.setdefault(record.session_id, []).append(record.status)
    assert sorted(statuses[-1] for statuses in sessions.values()) == ["accepted"] * 6


def test_first_event_of_a_process_leaves_it_early(program):
    program.run(
        """
        import time
        insight.init("p", "e", {**FILE, "recorder": {"flush_interval_s": 60}})
        insight.trace_event("first")
        os.makedirs(FILE["file"]["directory"], exist_ok=True)
        from rl_insight.transport import read_batches
        deadline = time.monotonic() + 20
        while not sum(len(batch.events) for batch in read_batches(FILE["file"]["directory"])):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os._exit(0)
        """
    )
    assert program.names() == ["first"]


TERMINATED = """
    import ctypes, multiprocessing, signal, time

    def work(ready):
        insight.trace_event("began")
        {setup}
        ready.set()
        {wait}

    if __name__ == "__main__":
        insight.init("p", "e", {{**FILE, "recorder": {{"flush_interval_s": 60}}}})
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        child = context.Process(target=work, args=(ready,))
        child.start()
        ready.wait(30)
        time.sleep(0.2)
        begun = time.monotonic()
        child.terminate()
        child.join(30)
        print(child.exitcode, time.monotonic() - begun < 10)
"""


GRANDCHILD = """inner = os.fork()
        if inner == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(inner, signal.SIGTERM)
        assert os.waitpid(inner, 0)[1] == signal.SIGTERM
        time.sleep(2)"""


@pytest.mark.parametrize(
    ("setup", "wait", "exit_code"),
    [
        ("pass", "time.sleep(60)", "-15"),
        # A C call that no signal interrupts: a mutex that this thread has locked.
        (
            "mutex = ctypes.create_string_buffer(64); ctypes.CDLL(None).pthread_mutex_lock(mutex)",
            "ctypes.CDLL(None).pthread_mutex_lock(mutex)",
            "-9",
        ),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", "time.sleep(60)", "7"),
        # A grandchild that is terminated takes nobody with it.
        (GRANDCHILD, "time.sleep(60)", "-15"),
    ],
)
def test_a_terminated_child_delivers_and_ends_in_bounded_time(program, setup, wait, exit_code):
    done = program.run(TERMINATED.format(setup=setup, wait=wait))
    assert done.stdout.split() == [exit_code, "True"]
    assert program.names() == ["began"]
    assert sum(batch.final for batch in program.batches()) >= 2
