"""Every barrier search against the definition of the answer, and against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.core.errors import ConfigurationError
from paceline.policies import policy
from paceline.policies.intervals import Intervals
from paceline.zipline import ALGORITHMS, EXACT, OBJECTIVES, Barrier, predict, search, sweeping
from paceline.zipline.operations import Operations
from paceline.zipline.rows import as_rows
from paceline.zipline.scans import zipline, zipline_opt, zipline_opt_bs

Row = list[float]


def authors_data(workers: int, lookahead: int, seed: int = 0) -> np.ndarray:
    """The journal paper's synthetic workers: whole milliseconds, intervals 1000..1500, begun within 100 ms."""
    random = np.random.default_rng(seed)
    return predict(random.integers(0, 101, workers), random.integers(1000, 1501, workers), lookahead)


def small_instances(seed: int, count: int) -> list[list[Row]]:
    """Few workers and points, made so that ties, equal times, stragglers and ragged rows are common."""
    random = np.random.default_rng(seed)
    instances = []
    for number in range(count):
        workers = int(random.integers(1, 5))
        lengths = random.integers(1, 6, workers)
        match number % 5:
            case 0:  # whole numbers from a small range: many ties
                rows = [np.sort(random.integers(0, 12, length)) for length in lengths]
            case 1:  # steps of 0..3: a worker's own points may be equal
                rows = [np.cumsum(random.integers(0, 4, length)) for length in lengths]
            case 2:
                rows = [np.sort(random.random(length)) for length in lengths]
            case 3:  # one very slow worker
                rows = list(predict(random.random(workers), random.uniform(1, 2, workers), int(lengths[0])))
                rows[0] = rows[0] * 50
            case _:  # predictions of equal and nearly equal workers
                rows = list(predict(random.integers(0, 3, workers), random.integers(1, 4, workers), int(lengths[0])))
        instances.append([row.tolist() for row in rows])
    return instances


@pytest.fixture
def sieve_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sieve run on small inputs too."""
    monkeypatch.setattr(sweeping, "FEW", 7)


# -- the same set from all --


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_exact_algorithm_finds_the_set_that_naive_finds(seed: int) -> None:
    for points in small_instances(seed, 750):
        expected = search(points, "naive")
        for algorithm in EXACT:
            assert search(points, algorithm) == expected, (algorithm, points)


@pytest.mark.usefixtures("sieve_everything")
def test_the_sieve_finds_the_set_that_naive_finds() -> None:
    for points in small_instances(99, 2000):
        assert search(points) == search(points, "naive"), points


@pytest.mark.parametrize(("workers", "lookahead"), [(3, 5000), (40, 400), (300, 60), (900, 15)])
def test_exact_algorithms_agree_on_large_instances(workers: int, lookahead: int) -> None:
    random = np.random.default_rng(workers)
    whole = authors_data(workers, lookahead, seed=workers)
    equal = predict(random.integers(0, 5, workers), np.full(workers, 7), lookahead)
    jittered = np.sort(whole + random.normal(0, 300, whole.shape), axis=1)
    ragged = [row[: random.integers(1, lookahead + 1)] for row in whole]
    far = predict(random.uniform(0, 1e-3, workers) + 1.7e9, random.uniform(0.9, 4.5, workers), lookahead)
    for points in (whole, equal, jittered, ragged, far, np.zeros((workers, lookahead))):
        expected = search(points, "zipline")
        for algorithm in ("zipline-opt", "zipline-opt-bs", "sweep"):
            assert search(points, algorithm) == expected, algorithm


@pytest.mark.slow
def test_exact_algorithms_agree_on_two_thousand_workers() -> None:
    points = authors_data(2000, 15, seed=5)
    random = np.random.default_rng(1)
    for instance in (points, np.sort(points + random.normal(0, 2000, points.shape), axis=1)):
        assert len({search(instance, algorithm) for algorithm in EXACT if algorithm != "naive"}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["total", "share"])
def test_the_other_objectives_are_what_naive_says(objective: str) -> None:
    for points in small_instances(7, 1500):
        found, expected = search(points, objective=objective), search(points, "naive", objective)
        assert found == expected, points


def test_grid_scans_are_never_better_than_the_optimum_and_sometimes_worse() -> None:
    worse = {"grid-scan": 0, "full-grid-scan": 0}
    for points in small_instances(3, 1000):
        optimum = search(points).spread
        for algorithm in worse:
            spread = search(points, algorithm).spread
            assert spread >= optimum
            worse[algorithm] += spread > optimum
    assert worse["grid-scan"] > 0 and worse["full-grid-scan"] > 0


def test_full_grid_scan_is_not_exact_on_a_case_found_by_search() -> None:
    # Whichever row is designated, some other row's nearest point lies on the wrong side.
    points = [[0, 2, 8], [0, 7], [7, 9], [1, 2]]
    assert search(points) == Barrier(7, 5, (2, 2, 1, 2), (5, 0, 0, 5))
    assert search(points, "full-grid-scan").spread == 6


def test_grid_scan_takes_the_earlier_of_two_nearest_points() -> None:
    assert search([[5.0], [4.0, 6.0]], "full-grid-scan").iterations == (1, 1)


# -- the answer --


def test_a_barrier_by_hand() -> None:
    assert search([[1.0, 2.0, 3.0], [2.8, 5.6]]) == Barrier(3.0, pytest.approx(0.2), (3, 1), pytest.approx((0.0, 0.2)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_worker_and_one_point_each(algorithm: str) -> None:
    assert search([[3.0, 4.0]], algorithm) == Barrier(3.0, 0.0, (1,), (0.0,))
    assert search(np.array([[3], [5], [4]]), algorithm) == Barrier(5, 2, (1, 1, 1), (2, 0, 1))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_of_two_equally_close_sets_the_earliest_wins(algorithm: str) -> None:
    assert search([[1, 11, 21], [2, 12, 22]], algorithm).iterations == (1, 1)


@pytest.mark.parametrize("algorithm", ["zipline", "zipline-opt", "zipline-opt-bs", "sweep"])
@pytest.mark.usefixtures("sieve_everything")
def test_timestamps_beyond_two_to_the_53_lose_nothing(algorithm: str) -> None:
    base = 2**60
    found = search([[base + 1, base + 100], [base + 4, base + 102], [base + 9, base + 101]], algorithm)
    assert found == Barrier(base + 102, 2, (2, 2, 2), (2, 0, 1))
    assert isinstance(found.time, int)
    many = [[base + 10 * i + 1 for i in range(8)], [base + 10 * i + 3 for i in range(8)]]
    assert search(many, algorithm) == Barrier(base + 3, 2, (1, 1), (2, 0))


def test_unsigned_and_narrow_numbers_are_fine() -> None:
    rows = np.array([[1, 4], [2, 9]])
    for dtype in (np.uint64, np.uint8, np.int16, np.float32):
        assert search(rows.astype(dtype)) == search(rows)
    assert search([np.array([1, 4], dtype=np.uint16), [2.5]]) == Barrier(2.5, 1.5, (1, 1), (1.5, 0.0))


def test_share_prefers_a_longer_superstep_that_waits_less_of_its_time() -> None:
    # From 0: waiting 0.5 of 2 seconds, or 0.8 of 16.
    points = [[1.5, 15.2], [2.0, 16.0]]
    assert search(points, objective="total", start=0.0).iterations == (1, 1)
    assert search(points, objective="share", start=0.0).iterations == (2, 2)


def test_share_reads_the_beginning_of_the_superstep_off_the_points() -> None:
    points = predict([3.0, 4.0], [1.0, 2.5], 6)
    assert search(points, objective="share") == search(points, objective="share", start=4.0)
    assert search([[3.0], [4.0]], objective="share").iterations == (1, 1)


def test_share_and_total_are_exact_where_running_sums_round() -> None:
    tenths = [[0.8, 1.6, 2.4000000000000004, 3.2], [0.30000000000000004, 0.5, 0.7000000000000001, 0.9]]
    assert search(tenths, objective="total") == search(tenths, "naive", "total")
    whole = np.array([[10, 18, 26, 34], [6, 11, 16, 21], [3, 4, 5, 6], [8, 12, 16, 20]])
    for shift in (0, 2**60):
        assert search(whole + shift, objective="share").iterations == (2, 4, 4, 4)
        assert search(whole + shift, "naive", "share").iterations == (2, 4, 4, 4)


@pytest.mark.parametrize("shift", [0, -(10**9), 2**60])
def test_the_sieve_agrees_on_skewed_data(shift: int) -> None:
    random = np.random.default_rng(4)
    workers, lookahead = 110, 120
    paper = authors_data(workers, lookahead)
    slow, early = paper.copy(), paper.copy()
    slow[0] *= 10_000
    early[3, 0] = -(10**7)
    shapes = [
        paper,
        slow,
        early,
        np.tile(np.arange(lookahead), (workers, 1)),
        np.full((workers, lookahead), 3),
        np.sort(random.choice([0, 10**3, 10**5], (workers, lookahead)) + random.integers(0, 50, (workers, lookahead))),
        1000 * np.arange(1, lookahead + 1) + random.integers(0, 30, (workers, lookahead)),
    ]
    for shape in shapes:
        assert search(shape + shift) == search(shape + shift, "zipline-opt-bs")
    floats = np.sort(np.exp(60 * random.random((workers, lookahead))), axis=1)
    for shape in (floats, np.where(np.arange(13000)[:, None] % 2 == 0, 0.0, 5e-324), np.full((12001, 1), -1)):
        assert search(shape) == search(shape, "zipline-opt-bs")


# -- prediction --


def test_predict_begins_with_the_next_iteration_or_with_the_last_push() -> None:
    assert predict([10, 20], [1, 5], 3).tolist() == [[11, 12, 13], [25, 30, 35]]
    assert predict([10, 20], [1, 5], 3, first=0).tolist() == [[10, 11, 12], [20, 25, 30]]
    assert predict([10, 20], [1, 5], 3).dtype == np.int64
    assert predict([0.5], [0.25], 2).tolist() == [[0.75, 1.0]]
    assert [row.tolist() for row in predict([10, 20], [1, 5], [1, 2])] == [[11], [25, 30]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [1.0, 2.0], 3), "last_push and interval must be equally long lists"),
        (([1.0], [1.0], 0), "lookahead is 0; at least 1 point per worker is needed"),
        (([1.0, 2.0], [1.0, -1.0], 3), "row 1: interval is -1.0; it must be a number from 0"),
        (([1.0], [math.nan], 3), "row 0: interval is nan"),
        (([1.0], [math.inf], 3), "row 0: interval is inf"),
        (([1.0, 2.0], [1.0, 1.0], [3]), "there are 2 workers, but 1 lookaheads"),
        ((["a"], [1], 3), "last_push and interval must be numbers"),
        (([0, 2**62], [1, 2**60], 15), "row 1: its predictions do not fit into 64 bits"),
    ],
)
def test_predict_refuses_what_cannot_be_predicted(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict(*arguments)  # type: ignore[arg-type]


# -- bad input --


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "there are no workers"),
        (np.empty((0, 3)), "there are no workers"),
        (np.empty((3, 0)), "row 0 has no points"),
        ([[1.0], []], "row 1 has no points"),
        ([[1.0, 2.0], [1.0, math.nan]], "row 1: point 2 is nan; points must be finite"),
        ([[math.nan], [1.0]], "row 0: point 1 is nan"),
        ([[1.0, 2.0], [1.0, math.inf]], "row 1: point 2 is inf; points must be finite"),
        ([[1.0, 2.0], [-math.inf, 1.0]], "row 1: point 1 is -inf; points must be finite"),
        ([[1.0, 2.0], [3.0, 2.0]], r"row 1: point 2 \(2.0\) is earlier than the one before \(3.0\)"),
        (np.array([[1, 2], [5, 4], [9, 9]]), r"row 1: point 2 \(4\) is earlier than the one before \(5\)"),
        ([[1.0], ["soon"]], "row 1 is not a list of numbers"),
        ([[1.0], 2.0], "row 1 is not a list of numbers"),
        ([[1.0], [[2.0], [3.0, 4.0]]], "row 1 is not a list of numbers"),
        ([[1.0], [True]], "row 1 is not a list of numbers"),
        ([[1], [2**70]], "row 1: whole numbers must fit into 64 bits"),
        ([[1], [2**63 + 5]], "row 1: whole numbers must fit into 64 bits"),
        ([[-(2**63)], [2**63 - 1]], "row 0: the points lie too far apart"),
        ([[-1.7e308], [1.7e308]], "the points lie too far apart"),
        ([[2**53 + 1], [0.5]], r"row 0: whole numbers beyond 2\*\*53 cannot be mixed with fractions"),
        (None, "points must be a matrix or a list of rows, not NoneType"),
        (5, "points must be a matrix or a list of rows, not int"),
        (np.array(5.0), "points must be a matrix or a list of rows, not ndarray"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_its_row(points: object, message: str) -> None:
    for algorithm in ALGORITHMS:
        with pytest.raises(ValueError, match=message):
            search(points, algorithm)  # type: ignore[arg-type]


def test_a_fault_deep_inside_a_large_input_is_found() -> None:
    points = authors_data(1000, 150).astype(float)
    points[777, 100] = math.nan
    with pytest.raises(ValueError, match="row 777: point 101 is nan"):
        search(points)


def test_unknown_names_are_answered_with_what_exists() -> None:
    with pytest.raises(ValueError, match="unknown algorithm 'zip'; there are: naive, grid-scan"):
        search([[1.0]], "zip")
    with pytest.raises(ValueError, match="unknown objective 'speed'; there are: spread, total, share"):
        search([[1.0]], objective="speed")
    with pytest.raises(ValueError, match="zipline knows only the objective spread; share needs sweep or naive"):
        search([[1.0]], "zipline", "share")
    with pytest.raises(ValueError, match="naive looks at every combination"):
        search(authors_data(30, 15), "naive")


# -- cost, without a clock --


def test_operation_counts_grow_as_the_paper_says() -> None:
    sizes = (100, 250, 500, 1000, 2000)
    counts: dict[str, list[int]] = {}
    for function in (zipline, zipline_opt, zipline_opt_bs):
        for workers in sizes:
            operations = Operations()
            function(as_rows(authors_data(workers, 5)), operations)
            counts.setdefault(function.__name__, []).append(operations.count)
    per_square = [count / (5 * n * n) for count, n in zip(counts["zipline"], sizes, strict=True)]
    assert max(per_square) / min(per_square) < 1.1  # O(R n^2)
    per_log = [count / (5 * n * math.log2(n)) for count, n in zip(counts["zipline_opt_bs"], sizes, strict=True)]
    assert max(per_log) / min(per_log) < 1.4 and max(per_log) < 2  # O(R n log n)
    # ZipLineOpt's linear search stays O(R n^2) on this data, with a far smaller constant: less is looked at.
    assert all(opt < plain / 3 for opt, plain in zip(counts["zipline_opt"], counts["zipline"], strict=True))


# -- ElasticBSP's use of it --


def test_elastic_bsp_takes_a_search_and_an_objective() -> None:
    for algorithm in ALGORITHMS:
        if algorithm != "naive":
            assert policy(f"elastic-bsp:search={algorithm}")
    for objective in OBJECTIVES:
        assert policy(f"elastic-bsp:objective={objective}")
    with pytest.raises(ConfigurationError, match="objective=share needs search=sweep; zipline knows only spread"):
        policy("elastic-bsp:search=zipline,objective=share")


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("last", 9.0), ("mean", 5.0), ("median", 4.0), ("smoothed", (2 * 0.5 + 4 * 0.5) * 0.5 + 9 * 0.5)],
)
def test_interval_estimators(estimator: str, expected: float) -> None:
    intervals = Intervals(estimator, window=3, smoothing=0.5)
    for seconds in (100.0, 2.0, 4.0, 9.0)[estimator == "smoothed" :]:
        intervals.observe(0, seconds)
    assert 0 in intervals and intervals.expected(0) == expected
    intervals.forget(0)
    assert 0 not in intervals
