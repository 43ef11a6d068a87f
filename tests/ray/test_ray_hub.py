import pytest

EXAMPLE = """
insight.init()
insight.metric_count("train_step_total", amount=1, worker="trainer_0")
insight.metric_value("reward_mean", value=1.23, worker="trainer_0")
insight.metric_distribution("step_latency_ms", value=42.5, worker="trainer_0")
with insight.trace_state("rollout", state_lane_id="trainer_0", step=10):
    pass

@insight.trace_op("update_model", stage="optimizer")
def update_model():
    return "updated"

assert update_model() == "updated"
"""


def test_the_original_example_runs_and_its_values_arrive(run_driver):
    out = run_driver(
        EXAMPLE
        + """
assert insight.flush(60)
text = metrics()
run = insight.get_status()["run_id"]
assert f'rl_insight_monitor_train_step_total{{worker="trainer_0",run_id="{run}"}} 1' in text
assert f'rl_insight_monitor_reward_mean{{worker="trainer_0",run_id="{run}"}} 1.23' in text
assert f'rl_insight_monitor_step_latency_ms_count{{worker="trainer_0",run_id="{run}"}} 1' in text
assert value('rl_insight_monitor_collector_events_total{kind="spans"}') == 2
print("done")
""",
        init='"local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1"',
    )
    assert "done" in out


def test_a_real_prometheus_scrapes_the_hub(start_driver, start_prometheus):
    driver = start_driver("""
    insight.init()
    for value in range(1, 1001):
        insight.metric_histogram("latency_ms", value / 10)
    insight.metric_count("calls", 2, worker="a")
    insight.metric_count("calls", 3, worker="b", shard="1")
    assert insight.flush(60)
    print(status()["metrics_url"], flush=True)
    sys.stdin.read()
    """)
    address = driver.stdout.readline().split("/")[2]
    prometheus = start_prometheus([address])
    prometheus.wait_for("rl_insight_monitor_calls_total")
    calls = {labels["worker"]: value for labels, value in prometheus.query("rl_insight_monitor_calls_total")}
    assert calls == {"a": 2, "b": 3}
    ((_, p95),) = prometheus.query("histogram_quantile(0.95, rl_insight_monitor_latency_ms_bucket)")
    assert abs(p95 - 95.0) / 95.0 < 0.05


def test_workers_and_actors_need_no_init_and_share_the_run(run_driver):
    run_driver("""
    insight.init("math", "grpo", role="driver")

    @ray.remote
    def task(i):
        insight.metric_count("task_calls", worker=str(i))
        time.sleep(0.01)
        return os.getpid()

    @ray.remote
    class Actor:
        def __init__(self):
            insight.init(role="rollout", rank=7)
        def act(self):
            insight.metric_count("actor_calls")
            insight.flush(60)
            return insight.get_status()

    pids = set(ray.get([task.remote(i) for i in range(8)]))
    actor = Actor.remote()
    assert ray.get(actor.act.remote())["run_id"] == insight.get_status()["run_id"]
    def of_the_run(line):
        return "task_calls_total{" in line and 'project="math"' in line and 'experiment_name="grpo"' in line
    wait_until(lambda: sum(map(of_the_run, metrics().splitlines())) == 8)
    roles = {p["pid"]: (p["role"], p["rank"]) for p in status()["collector"]["processes"].values()}
    assert ("rollout", 7) in roles.values() and ("driver", None) in roles.values()
    assert pids <= set(roles)
    """)


def test_spans_nest_across_actor_and_task_calls(run_driver):
    run_driver("""
    insight.init(config={"server": {"backend": "ray"}, "otlp": {"traces_endpoint": None}})

    @ray.remote
    @insight.traced_remote
    class Rollout:
        @insight.trace_op("generate")
        def generate(self, prompt, *, n=1):
            return insight.inject(), prompt * n
        async def agenerate(self):
            with insight.trace_span("inner"):
                return insight.inject()

    @ray.remote
    @insight.traced_remote
    def task(**kwargs):
        return insight.inject(), kwargs

    @ray.remote
    def plain():
        return insight.inject()

    rollout = Rollout.remote()
    with insight.step(5), insight.trace_span("step") as span:
        trace = insight.inject()["traceparent"].split("-")[1]
        carrier, text = ray.get(insight.call_remote(rollout.generate, "ab", n=2))
        assert text == "abab"
        assert carrier["traceparent"].split("-")[1] == trace
        assert carrier["traceparent"].split("-")[2] != f"{span.span_id:016x}"
        assert carrier["baggage"] == "rl_insight.step=5"
        assert ray.get(insight.call_remote(rollout.agenerate))["traceparent"].split("-")[1] == trace
        carrier, kwargs = ray.get(insight.call_remote(task, a=1))
        assert carrier["traceparent"] == insight.inject()["traceparent"] and kwargs == {"a": 1}
        assert ray.get(insight.call_remote(plain)) == {}
    assert ray.get(rollout.generate.remote("x"))[1] == "x"
    """)


def test_a_killed_worker_loses_at_most_its_last_flush_interval(run_driver):
    run_driver("""
    insight.init()

    @ray.remote(max_restarts=0)
    class Worker:
        def work(self, n):
            for _ in range(n):
                insight.metric_count("work_done")
        def delivered(self):
            return insight.get_status().get("transport", {}).get("delivered_batches", 0)
        def die(self):
            os.kill(os.getpid(), 9)

    worker = Worker.remote()
    ray.get(worker.work.remote(1000))
    wait_until(lambda: ray.get(worker.delivered.remote()) >= 1)
    worker.die.remote()
    wait_until(lambda: value("rl_insight_monitor_work_done_total") == 1000)
    """)


@pytest.mark.slow
def test_processes_behind_the_hub_send_their_stacks_when_they_are_asked(run_driver, server):
    out = run_driver(f"""
    import urllib.request
    url = {server.url!r}
    insight.init("p", "e", {{"server": {{"url": url}}}}, role="driver")
    run = insight.get_status()["run_id"]

    @ray.remote
    class Worker:
        def stick_here(self):
            insight.init(role="rollout", rank=3)
            insight.metric_count("alive")
            time.sleep(120)

    worker = Worker.remote()
    worker.stick_here.remote()

    def ask(method, path):
        with urllib.request.urlopen(urllib.request.Request(url + path, method=method), timeout=10) as answer:
            return json.loads(answer.read())

    wait_until(lambda: any(one["role"] == "rollout" for one in ask("GET", f"/api/v1/processes?run={{run}}")))
    assert ask("POST", f"/api/v1/stacks?run={{run}}")["asked"] >= 1

    def is_there():
        return "stick_here" in json.dumps(ask("GET", f"/api/v1/stacks?run={{run}}"))

    wait_until(is_there)
    print("done")
    """)
    assert "done" in out


def test_finish_waits_for_the_last_batches_of_the_workers(run_driver, server):
    out = run_driver(f"""
    insight.init("p", "e", {{"server": {{"url": {server.url!r}}}}})

    @ray.remote
    class Worker:
        def generate(self, step):
            with insight.session(task_id=step, step=step), insight.phase("generate"):
                time.sleep(0.05)

    @ray.remote
    def tool(step):
        with insight.trace_span("tool"):
            time.sleep(0.02)

    workers = [Worker.remote() for _ in range(2)]
    for step in range(3):
        ray.get([*(worker.generate.remote(step) for worker in workers), tool.remote(step)])
    print(insight.get_status()["run_id"], flush=True)
    begun = time.monotonic()
    insight.finish()
    print(time.monotonic() - begun < 8)
    ray.shutdown()
    """)
    run_id, in_time = out.split()[-2:]
    assert in_time == "True"
    rows = server.sql(run_id, "SELECT status, count(*) AS n FROM sessions GROUP BY status")
    assert rows == [["accepted", 6]]
    assert server.sql(run_id, "SELECT count(*) FROM spans WHERE name = 'tool' AND status = 'ok'") == [[3]]


def test_a_worker_that_joined_and_died_before_its_first_batch_is_counted(run_driver, server):
    out = run_driver(f"""
    insight.init("p", "e", {{"server": {{"url": {server.url!r}}}, "recorder": {{"finish_timeout_s": 3}}}})
    insight.flush(60)
    ray.get(find_hub().get_start.remote())  # as a worker does that is killed before its first batch
    print(insight.get_status()["run_id"], flush=True)
    insight.finish()
    """)
    losses = server.sql(out.split()[-1], "SELECT kind, reason, count FROM losses")
    assert ["processes", "not_heard", 1] in losses


def test_a_restarted_hub_gets_what_was_not_confirmed_and_all_totals_again(run_driver):
    run_driver("""
    insight.init()
    insight.metric_count("before")
    assert insight.flush(60)
    hub = find_hub()
    ray.kill(hub, no_restart=False)
    for _ in range(200):
        with insight.trace_span("work"):
            pass
    insight.metric_count("after", 3)
    wait_until(lambda: value("rl_insight_monitor_after_total") == 3)
    wait_until(lambda: value("rl_insight_monitor_before_total") == 1)
    wait_until(lambda: value('rl_insight_monitor_collector_events_total{kind="spans"}') == 200)
    """)


def test_two_jobs_on_one_node_do_not_collide_and_hubs_are_gone_with_their_job(start_driver, run_driver):
    other = start_driver("""
    insight.init()
    insight.metric_count("jobs", job="first")
    insight.flush(60)
    print(status()["metrics_url"], flush=True)
    sys.stdin.read()
    """)
    url = other.stdout.readline().strip()
    run_driver(f"""
    insight.init()
    insight.metric_count("jobs", job="second")
    insight.flush(60)
    assert status()["metrics_url"] != {url!r}
    assert value('rl_insight_monitor_jobs_total{{job="second"') == 1
    assert 'job="first"' not in metrics()
    wait_until(lambda: len(hubs()) == 2)
    """)
    other.communicate(timeout=60)
    run_driver("wait_until(lambda: not hubs())")


def test_without_a_hub_a_worker_continues_and_records_nothing(run_driver):
    run_driver("""
    import rl_insight.monitor
    @ray.remote
    def work():
        import rl_insight.monitor
        rl_insight.monitor._HUB_WAIT_S = 0.1
        insight.metric_count("lost")
        wait_until(lambda: not insight.get_status()["recording"], 30)
        insight.metric_count("lost")
        return "worked"
    assert ray.get(work.remote()) == "worked"
    """)


def test_with_one_hub_a_node_the_workers_use_the_one_on_their_own(run_driver):
    run_driver("""
    insight.init(config={"ray": {"hub": "node"}})
    insight.metric_count("driver_calls")
    assert insight.flush(60)
    assert hub_name() in hubs()
    """)


def test_waiting_for_a_hub_that_hangs_costs_the_recording_thread_nothing(run_driver):
    run_driver("""
    insight.init()
    insight.metric_count("calls")
    assert insight.flush(60)
    import signal, threading
    pid = ray.get(find_hub().__ray_call__.remote(lambda hub: os.getpid()))
    os.kill(pid, signal.SIGSTOP)
    try:
        finished = threading.Event()
        def train():
            for _ in range(5000):
                insight.metric_count("calls")
                with insight.trace_span("work"):
                    pass
            finished.set()
        threading.Thread(target=train, daemon=True).start()
        assert finished.wait(60)
        assert not insight.flush(0.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: value("rl_insight_monitor_calls_total") == 5001)
    """)


def test_the_hub_outlives_its_maker_and_each_process_has_its_own_names(run_driver):
    out = run_driver("""
    @ray.remote(num_cpus=0)
    class Worker:
        def start(self, *names):
            insight.init(*names, config={"server": {"backend": "ray"}, "prometheus": {"metrics_report_port": 0}})
            insight.metric_gauge("reward", 1.0, of=names[1] if names else "nameless")
            return insight.flush(30)

        def record(self, value):
            insight.metric_gauge("later", value)
            return insight.flush(60)

    nameless, trainer = Worker.remote(), Worker.remote()
    assert ray.get(nameless.start.remote())
    assert ray.get(trainer.start.remote("math", "grpo"))
    lines = wait_until(lambda: len(found := [l for l in metrics().splitlines() if "_reward{" in l]) == 2 and found)
    named = [line for line in lines if 'project="math"' in line and 'experiment_name="grpo"' in line]
    print([line.split('of="')[1].split('"')[0] for line in named])
    found = status()
    print(found["actor_name"], found["namespace"], found["prometheus_metrics_enabled"], found["events_applied"] > 0)
    print(found["metrics_endpoint"] == found["metrics_url"], bool(found["node_ip"]), found["otel_traces_enabled"])
    made = hubs()
    ray.kill(nameless)
    assert hubs() == made
    assert ray.get(trainer.record.remote(2.0))
    wait_until(lambda: value("rl_insight_monitor_later{") == 2.0)
    print(value('rl_insight_monitor_reward{of="grpo"'))
    """)
    assert out.splitlines() == [
        "['grpo']",
        "RLInsightMonitorHub rl-insight-monitor True True",
        "True True False",
        "1.0",
    ]


def test_what_a_hub_has_confirmed_survives_the_death_of_its_maker_and_its_own(start_driver, server, wait_until):
    """The server is down meanwhile, so that only the hub has the batches."""
    driver = start_driver(f"""
    config = {{"server": {{"backend": "ray", "url": "{server.url}"}}, "prometheus": {{"metrics_report_port": 0}}}}

    @ray.remote(num_cpus=0, max_restarts=0)
    class Worker:
        def record(self, part):
            insight.init(config=config)
            for number in range(50):
                with insight.trace_span("work", {{"part": part}}):
                    pass
            insight.flush(0.1)
            wait_until(lambda: insight.get_status().get("transport", {{}}).get("waiting_batches") == 0)
            return insight.get_status()["run_id"]
        def die(self):
            os.kill(os.getpid(), 9)

    def hub_pid():
        return ray.get(find_hub().__ray_call__.remote(lambda hub: os.getpid()))

    maker = Worker.remote()
    print("run", ray.get(maker.record.remote("before")), flush=True)
    sys.stdin.readline()
    workers = [maker, Worker.remote(), Worker.remote()]
    ray.get([worker.record.remote("away") for worker in workers])
    first = hub_pid()
    try:
        ray.get(maker.die.remote())
    except ray.exceptions.RayActorError:
        pass
    ray.get([worker.record.remote("without maker") for worker in workers[1:]])
    assert hub_pid() == first
    os.kill(first, 9)
    wait_until(lambda: hub_pid() != first)
    ray.get([worker.record.remote("new hub") for worker in workers[1:]])
    print("recorded", flush=True)
    sys.stdin.readline()
    """)

    def told(word):
        """Return the driver's output after a keyword; Ray prints lines in between."""
        for line in driver.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise AssertionError(driver.stderr.read())

    run_id = told("run")

    def stored():
        try:
            return server.sql(run_id, "SELECT count(*), count(DISTINCT span_id) FROM spans WHERE name = 'work'")
        except OSError:  # the run has not arrived yet
            return None

    wait_until(lambda: stored() == [[50, 50]])
    server.kill()
    driver.stdin.write("\n")
    driver.stdin.flush()
    told("recorded")
    server.start()
    driver.kill()  # the hub sees that its job is over, and delivers
    wait_until(lambda: stored() == [[400, 400]], 60)


def test_workers_that_start_together_share_one_run(run_driver, server):
    out = run_driver(f"""
    @ray.remote(num_cpus=0)
    class Worker:
        def start(self, rank):
            insight.init(config={{"server": {{"backend": "ray", "url": "{server.url}"}}}}, role="worker", rank=rank)
            insight.metric_gauge("reward", rank)
            insight.flush(60)
            return insight.get_status()["run_id"]

    workers = [Worker.remote() for _ in range(4)]
    ray.get([worker.__ray_ready__.remote() for worker in workers])
    print(len(set(ray.get([worker.start.remote(rank) for rank, worker in enumerate(workers)]))), len(hubs()))
    """)
    assert out.split() == ["1", "1"]
    assert len(server.get("/api/v1/runs")) == 1


def test_a_driver_that_comes_after_nameless_workers_names_their_run(run_driver, server):
    out = run_driver(f"""
    config = {{"server": {{"backend": "ray", "url": "{server.url}"}}}}

    @ray.remote(num_cpus=0)
    class Worker:
        def start(self):
            insight.init(config=config)
            insight.metric_gauge("loaded", 1.0)
            insight.flush(60)
            return insight.get_status()["run_id"]

    first, late = Worker.remote(), Worker.remote()
    run_id = ray.get(first.start.remote())
    insight.init("math", "grpo", config)
    insight.metric_gauge("reward", 0.5)
    assert insight.flush(60)
    assert insight.get_status()["run_id"] == run_id
    assert ray.get(late.start.remote()) == run_id
    insight.finish()
    insight.init("math", "sft", config)
    insight.metric_gauge("loss", 0.5)
    assert insight.flush(60)
    print(run_id, insight.get_status()["run_id"])
    insight.finish()
    """)
    first, second = out.split()
    found = {run["run_id"]: (run["project"], run["experiment_name"]) for run in server.get("/api/v1/runs")}
    assert found == {first: ("math", "grpo"), second: ("math", "sft")}
