from __future__ import annotations

from rl_insight.recorder.clock import Clock
from rl_insight.testing import FakeClock


def make_clock():
    fake = FakeClock()
    return fake, Clock(now=fake.monotonic_ns, wall=fake.wall_ns)


def test_reading_has_its_wall_time():
    fake, clock = make_clock()
    fake.advance(5)
    assert clock.wall_ns(clock.now()) == fake.wall_ns()


def test_small_corrections_do_not_move_the_anchor():
    fake, clock = make_clock()
    before = clock.offset_ns
    fake.step_wall(0.1)
    clock.follow_steps()
    assert clock.offset_ns == before


def test_a_step_takes_a_new_anchor():
    fake, clock = make_clock()
    fake.step_wall(-60)
    clock.follow_steps()
    assert clock.wall_ns(clock.now()) == fake.wall_ns()


def test_turn_lost_between_the_two_readings_does_not_move_the_anchor():
    fake = FakeClock()
    turns = iter([0.05, 0.0, 0.02])

    def interrupted_ns():
        reading = fake.wall_ns()
        fake.advance(next(turns))
        return reading

    clock = Clock(now=fake.monotonic_ns, wall=interrupted_ns)
    assert clock.wall_ns(clock.now()) == fake.wall_ns()
