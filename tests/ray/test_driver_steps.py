"""In a real cluster: records of workers have the driver's step."""

PROGRAM = """
insight.init("p", "steps", {{"server": {{"url": {url!r}}}}}, role="driver")

@ray.remote
class Rollout:
    def generate(self, number):
        with insight.trace_span(f"generate-{{number}}"):
            time.sleep(0.01)

@ray.remote
def score(number):
    with insight.step(99), insight.trace_span(f"score-{{number}}"):
        pass

rollouts = [Rollout.remote() for _ in range(2)]
ray.get([one.generate.remote(0) for one in rollouts])
for step in range(1, 5):
    insight.set_step(step)
    ray.get([one.generate.remote(step) for one in rollouts] + [score.remote(step)])
print(insight.get_status()["run_id"])
insight.finish()
"""


def test_workers_record_under_the_step_of_their_driver(run_driver, server):
    run_id = run_driver(PROGRAM.format(url=server.url)).strip().splitlines()[-1]
    sql = "SELECT name, step, count(*) FROM spans WHERE name SIMILAR TO '(generate|score)-.*' GROUP BY ALL ORDER BY ALL"
    assert server.sql(run_id, sql) == [
        ["generate-0", None, 2],
        *[[f"generate-{step}", step, 2] for step in range(1, 5)],
        *[[f"score-{step}", 99, 1] for step in range(1, 5)],
    ]
    assert server.sql(run_id, "SELECT count(*), count(*) FILTER (final) FROM processes WHERE role <> 'driver'") == [
        [4, 4]
    ]


OUTLIVING = """
insight.init("p", "outlive", {{"server": {{"url": {url!r}}}}}, role="driver")

@ray.remote
class Worker:
    def work(self, name):
        with insight.trace_span(name):
            pass
        insight.flush()

worker = Worker.remote()
ray.get(worker.work.remote("before"))
print(insight.get_status()["run_id"])
insight.finish()
ray.get(worker.work.remote("after"))
ray.get(worker.work.remote("later"))
"""


def test_a_worker_that_outlives_its_driver_s_run_loses_nothing(run_driver, server):
    run_id = run_driver(OUTLIVING.format(url=server.url)).strip().splitlines()[-1]
    rows = server.sql(run_id, "SELECT name FROM spans WHERE name IN ('before', 'after', 'later') ORDER BY name")
    assert rows == [["after"], ["before"], ["later"]]
