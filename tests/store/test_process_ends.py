"""Until when open spans last: now while their process is live, otherwise its last sign of life."""

from __future__ import annotations

import msgspec
import pytest

from rl_insight.schema.signs_of_life import LAST_SEEN_EVENT, LastSeen
from rl_insight.store import queries
from rl_insight.store.queries import Scope
from rl_insight.store.queries.states import StateTimes
from rl_insight.store.queries.step_answers import step_answers
from rl_insight.store.queries.steps import StepWindow
from tests.store.test_page_queries import SECOND, ask, state

RUNNING = -1 / SECOND
"""The duration of an open span."""
STARTED_S = 10
LAST_SEEN_S = 14
NOW_S = 600


def report(store, maker, begin_ns, at_s, *, is_imported=False, **fields):
    """Commit what a process has recorded, as received at a time."""
    at_ns = begin_ns + at_s * SECOND
    store.commit([maker.build(sent_ns=0 if is_imported else at_ns, **fields)], received_ns=[at_ns])


@pytest.fixture
def killed(store, make, begin_ns):
    """Record a rollout that is last seen at 14 s, inside a session that it began at 10 s; another process is live."""
    maker = make("rollout", role="rollout", heartbeat_s=5.0)
    state(maker, "generate", STARTED_S, RUNNING, segment="phase", session_id="s")
    report(store, maker, begin_ns, LAST_SEEN_S)
    trainer = make("trainer", role="trainer", heartbeat_s=5.0)
    state(trainer, "update", 20, RUNNING, span_id=77)
    report(store, trainer, begin_ns, NOW_S - 1)
    return maker


def ends(store, begin_ns, now_s=NOW_S):
    """Return when every query says that `generate` ends, in seconds."""
    now_ns = begin_ns + now_s * SECOND
    window = {"start_ns": begin_ns, "end_ns": begin_ns + 10_000 * SECOND}
    shown = ask(store, queries.timeline, **window, now_ns=now_ns)
    place = next(place for place, name in enumerate(shown.name) if shown.names[name] == "generate")
    spots = {spot.name: spot for spot in ask(store, queries.hotspots, Scope(**window), now_ns=now_ns)}
    nodes = {
        node.name: node for root in ask(store, queries.flame, Scope(**window), now_ns).roots for node in root.children
    }
    states = ask(store, lambda cursor: StateTimes(cursor, [StepWindow(0, *window.values())], now_ns))
    is_it = [states.names[name_id] == "generate" for name_id in states.columns["name_id"].tolist()]
    span = ask(store, queries.span_detail, f"{1:016x}", now_ns=now_ns).span
    (waiting,) = ask(store, queries.sessions_in_flight, now_ns)
    found = {
        "timeline": shown.block_end_ns[place] - begin_ns,
        "hotspots": spots["generate"].wall_ns + STARTED_S * SECOND,
        "flame": nodes["generate"].wall_ns + STARTED_S * SECOND,
        "states": int(states.columns["end_ns"][is_it][0]) - begin_ns,
        "span": span.until_ns - begin_ns,
        "sessions": (waiting.phase_age_s + STARTED_S) * SECOND,
    }
    return {name: end_ns / SECOND for name, end_ns in found.items()}


def in_flight(store, begin_ns, now_s=NOW_S):
    return {work.name: work.oldest_age_s for work in ask(store, queries.open_work, begin_ns + now_s * SECOND)}


def test_work_of_a_live_process_lasts_until_now(store, killed, begin_ns):
    # Its heartbeat is 5 s: it is live until 15 s after it was last seen.
    assert set(ends(store, begin_ns, now_s=29).values()) == {29}
    assert in_flight(store, begin_ns, now_s=29) == {"generate": 19, "update": 9}


def test_work_of_a_killed_process_ends_when_it_was_last_seen(store, killed, begin_ns):
    assert set(ends(store, begin_ns).values()) == {LAST_SEEN_S}
    assert in_flight(store, begin_ns) == {"update": NOW_S - 20}


def test_work_of_a_process_that_ended_does_so_with_its_last_report(store, killed, begin_ns):
    report(store, killed, begin_ns, 16, final=True)
    assert set(ends(store, begin_ns, now_s=17).values()) == {16}
    assert set(ends(store, begin_ns).values()) == {16}
    assert in_flight(store, begin_ns, now_s=21) == {"update": 1}


def test_work_of_a_process_that_reports_again_is_in_flight_again(store, killed, begin_ns):
    assert "generate" not in in_flight(store, begin_ns)
    report(store, killed, begin_ns, NOW_S)
    assert set(ends(store, begin_ns, now_s=NOW_S + 2).values()) == {NOW_S + 2}
    assert in_flight(store, begin_ns, now_s=NOW_S + 2)["generate"] == NOW_S + 2 - STARTED_S


def test_work_of_a_silent_process_is_not_overdue(store, killed, begin_ns):
    for call in range(3):
        state(killed, "generate", call, 1, segment="phase")
    report(store, killed, begin_ns, LAST_SEEN_S)
    late_ns, live_ns = begin_ns + NOW_S * SECOND, begin_ns + (LAST_SEEN_S + NOW_S) * SECOND
    assert ask(store, queries.span_detail, f"{1:016x}", now_ns=late_ns).severity is None
    report(store, killed, begin_ns, LAST_SEEN_S + NOW_S)
    assert ask(store, queries.span_detail, f"{1:016x}", now_ns=live_ns).severity == "warning"


@pytest.mark.parametrize(("last_seen_s", "end_s"), [(None, 33), (12, 12)])
def test_work_of_an_imported_process_lasts_until_the_run_or_the_exported_process_ends(
    store, make, begin_ns, last_seen_s, end_s
):
    maker = make("rollout", role="rollout")
    state(maker, "generate", STARTED_S, RUNNING, segment="phase", session_id="s")
    state(maker, "reward", 30, 3)
    if last_seen_s is not None:
        text = msgspec.json.encode(LastSeen()).decode()
        maker.builder.add_event(time_ns=begin_ns + last_seen_s * SECOND, name=LAST_SEEN_EVENT, attributes=text)
    report(store, maker, begin_ns, NOW_S, is_imported=True)
    assert set(ends(store, begin_ns, now_s=NOW_S + 1).values()) == {end_s}
    assert in_flight(store, begin_ns, now_s=NOW_S + 1) == {}


def test_remembered_answers_about_steps_follow_a_process_that_falls_silent(store, make, begin_ns, monkeypatch):
    """A rollout is last seen in the middle of step 1, which takes 100 s."""
    step = StepWindow(1, begin_ns + 100 * SECOND, begin_ns + 200 * SECOND)
    rollout = make("rollout", role="rollout", heartbeat_s=60.0)
    state(rollout, "generate", 100, RUNNING)
    report(store, rollout, begin_ns, 150)

    def generating_s(now_s):
        monkeypatch.setattr("time.time_ns", lambda: begin_ns + now_s * SECOND)
        with store.reader() as cursor:

            def compute(steps):
                found = StateTimes(cursor, steps).columns
                computed.append(now_s)
                return [min(int(found["end_ns"][0]), step.end_ns) - int(found["start_ns"][0])]

            (answer,) = step_answers(cursor, "generating", "trainer", [step], compute, lambda _: 8)
        return answer / SECOND

    computed: list[int] = []
    # Live until 330 s: its work lasts until now, which is after the step.
    assert [generating_s(now_s) for now_s in (310, 320, 400, 500)] == [100, 100, 50, 50]
    assert computed == [310, 400]
