"""A job's hub is a registered target of a real server while it lives, and is removed with the job."""

import shutil

import pytest

JOB = """
insight.init("math", "grpo", {{"server": {{"url": "{url}"}}}}, run_id="r1")
insight.metric_value("reward", 0.5)
insight.flush(60)
print(status()["metrics_url"], flush=True)
sys.stdin.readline()
insight.finish()
print("finished", flush=True)
sys.stdin.readline()
"""


def start_job(start_driver, server):
    driver = start_driver(JOB.format(url=server.url))
    return driver, driver.stdout.readline().strip()


def go_on(driver):
    driver.stdin.write("\n")
    driver.stdin.flush()


def test_a_hub_is_on_the_servers_list_and_leaves_when_the_job_ends(start_driver, server, wait_until):
    driver, metrics_url = start_job(start_driver, server)
    (target,) = wait_until(server.targets)
    assert target["url"] == metrics_url
    assert target["job_name"] == "trainer_metrics"
    assert (target["run_id"], target["project"], target["experiment_name"]) == ("r1", "math", "grpo")
    assert set(target["labels"]) == {"ray_job"}
    wait_until(lambda: (server.targets()[0]["health"] or {}).get("is_up"))
    go_on(driver)
    assert driver.stdout.readline() == "finished\n"
    # Well before the lease is over.
    wait_until(lambda: server.targets() == [])
    go_on(driver)
    assert driver.wait(60) == 0


def test_what_a_hub_forwards_is_stored_once_and_its_own_health_beside_it(start_driver, server, wait_until):
    driver, _ = start_job(start_driver, server)
    names = "SELECT name, count(DISTINCT labels) FROM series GROUP BY 1"
    found = wait_until(lambda: (rows := dict(server.sql("r1", names))) and "hub_batches" in rows and rows, 60)
    assert found["reward"] == 1
    assert not [name for name in found if name.startswith("rl_insight_monitor")]
    wait_until(lambda: server.sql("r1", "SELECT max(value) FROM samples WHERE name = 'hub_batches'")[0][0] >= 1)
    driver.kill()


@pytest.mark.slow
def test_a_server_that_lost_its_list_knows_the_hub_again(start_driver, server, wait_until):
    driver, metrics_url = start_job(start_driver, server)
    wait_until(server.targets)
    server.kill()
    shutil.rmtree(server.data_dir)
    server.start()
    wait_until(lambda: [target["url"] for target in server.targets()] == [metrics_url], 60)
    driver.kill()


@pytest.mark.slow
def test_a_hub_that_moved_takes_the_place_of_its_old_address(start_driver, server, wait_until):
    driver = start_driver(f"""
    config = {{"server": {{"url": "{server.url}"}}, "prometheus": {{"metrics_report_port": 0}}}}
    insight.init(config=config, run_id="r1")
    insight.flush(60)
    before = status()["metrics_url"]
    print(before, flush=True)
    sys.stdin.readline()
    ray.kill(find_hub(), no_restart=False)
    def has_moved():
        found = status()
        return found["registration"]["is_registered"] and found["metrics_url"] != before and found["metrics_url"]
    print(wait_until(has_moved), flush=True)
    sys.stdin.readline()
    """)
    before = driver.stdout.readline().strip()
    wait_until(lambda: [target["url"] for target in server.targets()] == [before])
    go_on(driver)
    after = driver.stdout.readline().strip()
    assert [target["url"] for target in server.targets()] == [after] != [before]
    driver.kill()


def test_a_server_that_is_down_is_counted_and_harms_nobody(run_driver):
    run_driver("""
    insight.init(config={"server": {"url": "http://127.0.0.1:1"}})
    insight.metric_count("calls")
    wait_until(lambda: status()["registration"]["failures"] >= 2)
    assert "refused" in status()["registration"]["last_error"]
    wait_until(lambda: value("rl_insight_monitor_calls_total") == 1)
    """)


def test_without_a_server_a_hub_is_found_as_ever_and_says_why_it_is_on_no_list(run_driver):
    run_driver("""
    insight.init()
    insight.metric_count("calls")
    insight.flush(60)
    assert status()["registration"] == {"not_registered": "no server is configured."}
    assert value("rl_insight_monitor_calls_total") == 1
    assert hub_name() in hubs()
    """)


def test_a_hub_on_loopback_is_not_given_to_a_server_elsewhere(run_driver):
    run_driver("""
    insight.init(config={"server": {"url": "http://node7.invalid:18080"}, "recorder": {"finish_timeout_s": 0.1}})
    assert "metrics_report_host" in status()["registration"]["not_registered"]
    """)


@pytest.mark.slow
def test_a_hub_that_listens_everywhere_gives_the_address_of_its_node(run_driver, server):
    run_driver(f"""
    insight.init(config={{
        "server": {{"url": "{server.url}"}},
        "prometheus": {{"metrics_report_host": "0.0.0.0", "metrics_report_port": 0}},
    }})
    wait_until(lambda: status()["registration"]["is_registered"])
    host, _, _ = status()["registration"]["address"].rpartition(":")
    assert host in [node["NodeManagerAddress"] for node in ray.nodes()]
    """)
