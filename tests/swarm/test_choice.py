"""Which road a stream takes, by measurement and failure alone."""

from __future__ import annotations

from demoloco.swarm.roads.choice import (
    FIRST_ASIDE_SECONDS,
    FIRST_LOOK_SECONDS,
    LAST_ASIDE_SECONDS,
    LEAST_BYTES,
    WINDOW_SECONDS,
    Choice,
    Pace,
    Road,
)

MIB = 1 << 20


def carried(choice: Choice, road: Road, rate: float, now: float = 0.0) -> None:
    """One stream of a MiB at so many bytes a second."""
    pace = choice.pace(road)
    pace.begin(now)
    pace.came(MIB, now)
    pace.end(now + MIB / rate)


def measured(libp2p: float, grpc: float) -> Choice:
    choice = Choice()
    carried(choice, Road.LIBP2P, libp2p)
    carried(choice, Road.GRPC, grpc)
    return choice


def test_several_streams_are_measured_as_one_flow() -> None:
    pace = Pace()
    pace.begin(0.0)
    pace.begin(0.0)
    pace.came(MIB, 0.5)
    pace.came(MIB, 1.0)
    pace.end(1.0)
    assert pace.rate == 0.0
    pace.end(2.0)
    assert pace.rate == MIB


def test_a_road_that_is_always_in_use_is_measured_too() -> None:
    pace = Pace()
    pace.begin(0.0)
    pace.came(MIB, WINDOW_SECONDS)
    assert pace.rate == MIB / WINDOW_SECONDS


def test_a_few_bytes_say_nothing_of_a_road() -> None:
    pace = Pace()
    pace.begin(0.0)
    pace.came(LEAST_BYTES - 1, 0.1)
    pace.end(1.0)
    assert pace.rate == 0.0


def test_without_a_direct_road_blobs_take_libp2p() -> None:
    assert measured(1e6, 1e9).pick(0.0, direct=False) is Road.LIBP2P


def test_a_direct_road_that_was_never_measured_is_tried() -> None:
    choice = Choice()
    carried(choice, Road.LIBP2P, 1e9)
    assert choice.pick(0.0, direct=True) is Road.GRPC


def test_the_faster_road_is_taken() -> None:
    choice = measured(1e6, 3e6)
    assert choice.pick(1.0, direct=True) is Road.GRPC
    assert choice.road is Road.GRPC
    assert measured(3e6, 1e6).pick(1.0, direct=True) is Road.LIBP2P


def test_a_road_that_is_hardly_faster_is_no_reason_to_change() -> None:
    choice = measured(1.0e6, 1.05e6)
    assert choice.pick(0.0, direct=True) is Road.LIBP2P


def test_the_slower_road_is_tried_once_now_and_then() -> None:
    choice = measured(2e6, 3e6)
    picks = [choice.pick(float(second), direct=True) for second in range(1, 200)]
    looks = [second for second, road in enumerate(picks, 1) if road is Road.LIBP2P]
    assert looks == [1 + FIRST_LOOK_SECONDS, 1 + 2 * FIRST_LOOK_SECONDS, 1 + 3 * FIRST_LOOK_SECONDS]
    assert choice.road is Road.GRPC


def test_a_road_that_is_far_slower_is_tried_ever_more_rarely() -> None:
    choice = measured(1e5, 3e6)
    picks = [choice.pick(float(second), direct=True) for second in range(1, 1000)]
    looks = [second for second, road in enumerate(picks, 1) if road is Road.LIBP2P]
    assert looks == [121, 361, 841]


def test_a_road_that_fails_is_set_aside_for_longer_each_time() -> None:
    choice, now, pauses = measured(1e6, 3e6), 10.0, []
    for _ in range(12):
        choice.failed(Road.GRPC, now)
        assert choice.pick(now, direct=True) is Road.LIBP2P
        pauses.append(choice.aside_left(Road.GRPC, now))
        now += pauses[-1]
        assert not choice.is_aside(Road.GRPC, now)
    assert pauses[:3] == [FIRST_ASIDE_SECONDS, 2 * FIRST_ASIDE_SECONDS, 4 * FIRST_ASIDE_SECONDS]
    assert pauses[-1] == LAST_ASIDE_SECONDS


def test_streams_that_fail_together_count_as_one_failure() -> None:
    choice = Choice()
    for _ in range(8):
        choice.failed(Road.GRPC, 10.0)
    assert choice.aside_left(Road.GRPC, 10.0) == FIRST_ASIDE_SECONDS


def test_a_stream_that_ends_well_clears_the_road() -> None:
    choice = measured(1e6, 3e6)
    choice.failed(Road.GRPC, 10.0)
    choice.worked(Road.GRPC)
    assert choice.pick(10.0, direct=True) is Road.GRPC


def test_libp2p_is_left_for_the_direct_road_while_it_is_set_aside() -> None:
    choice = measured(3e6, 1e6)
    choice.failed(Road.LIBP2P, 10.0)
    assert choice.pick(10.0, direct=True) is Road.GRPC
