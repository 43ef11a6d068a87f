"""Importing the output of `ray timeline`."""

from rl_insight.exchange.importing.destinations import StoreDestination
from rl_insight.exchange.importing.importer import Importer
from rl_insight.store import RunDirectory

PROGRAM = """
@ray.remote
def rollout(number):
    time.sleep(0.01)
    return number

ray.get([rollout.remote(number) for number in range(20)])
deadline = time.monotonic() + 60
while time.monotonic() < deadline:  # workers report their tasks every second
    ray.timeline({path!r})
    if open({path!r}).read().count('"task::rollout"') == 20:
        break
    time.sleep(0.2)
"""


def test_a_timeline_of_ray_gives_every_task_once(run_driver, tmp_path):
    path = tmp_path / "timeline.json"
    run_driver(PROGRAM.format(path=str(path)))
    directory = RunDirectory(tmp_path / "data", min_free_bytes=0)
    try:
        for new in (True, False):
            importer = Importer(StoreDestination(directory), data_dir=tmp_path / "data", run_id="r")
            importer.add(path)
            summary = importer.summary()
            assert (summary.bad, summary.formats, summary.new_batches > 0) == (0, {"chrome": 1}, new)
        with directory.open("r") as store, store.reader() as cursor:
            tasks = cursor.execute(
                "SELECT name, count(*), min(duration_ns) >= 10000000, min(start_ns) > 1700000000000000000 FROM spans "
                "WHERE attributes LIKE '%task::rollout%' GROUP BY name"
            ).fetchall()
            places = cursor.execute("SELECT DISTINCT host, split_part(lane, ':', 1) FROM spans ORDER BY 2").fetchall()
    finally:
        directory.close()
    assert [row[1:] for row in tasks if "rollout" in row[0]] == [(20, True, True)]
    [driver, worker] = places
    assert (driver[1], worker[1]) == ("driver", "worker")
    assert driver[0] == worker[0] != "imported"
