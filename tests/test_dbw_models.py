"""The two models behind DBW, against closed forms and slow exact solutions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import minimize, nnls

from paceline.core.messages import Statistics
from paceline.policies import time_model
from paceline.policies.gain_model import LEAST_SMOOTHNESS, GainModel
from paceline.policies.time_model import PRIOR, ROWS, TimeModel, isotonic_row

Table = npt.NDArray[np.float64]


def isotonic_table(target: Table, weight: Table) -> Table:
    return np.stack([isotonic_row(target, weight, row) for row in range(len(target))])


# -- T(h, k) --


def exact_isotonic_table(target: Table, weight: Table) -> Table:
    """The same least squares as a general constrained problem."""
    shape = target.shape
    constraints = [
        {"type": "ineq", "fun": lambda x: np.diff(x.reshape(shape), axis=1).ravel()},
        {"type": "ineq", "fun": lambda x: -np.diff(x.reshape(shape), axis=0).ravel()},
    ]
    solution = minimize(
        lambda x: float((weight.ravel() * (x - target.ravel()) ** 2).sum()),
        target.ravel(),
        constraints=constraints,
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert solution.success
    return solution.x.reshape(shape)


@pytest.mark.parametrize("seed", range(12))
def test_two_way_isotonic_fit_against_an_exact_solution(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = (int(random.integers(1, 5)), int(random.integers(1, 6)))
    target, weight = random.uniform(0, 5, shape), random.uniform(0.2, 4, shape)
    fitted = isotonic_table(target, weight)
    assert (np.diff(fitted, axis=1) >= -1e-7).all() and (np.diff(fitted, axis=0) <= 1e-7).all()
    assert fitted == pytest.approx(exact_isotonic_table(target, weight), abs=2e-4)


def exact_by_the_dual(target: Table, weight: Table) -> Table:
    """The same again, by non-negative least squares for the multipliers of the constraints: exact to eight digits.

    Equal numbers would make that go round in circles, so they are moved apart by less; a fit never moves by more than
    its target did.
    """
    apart = target + 1e-9 * np.abs(target).max() * np.random.default_rng(0).random(target.shape)
    number = np.arange(target.size).reshape(target.shape)
    less = np.concatenate([number[:, :-1].ravel(), number[1:].ravel()])
    more = np.concatenate([number[:, 1:].ravel(), number[:-1].ravel()])
    order = np.eye(target.size)[more] - np.eye(target.size)[less]  # times the table: nowhere negative
    root = np.sqrt(weight.ravel())
    columns = order.T / root[:, None]
    size = np.linalg.norm(columns, axis=0)
    multiplier = nnls(columns / size, -root * apart.ravel(), maxiter=10_000)[0] / size
    fitted = apart.ravel() + order.T @ multiplier / weight.ravel()
    rise = order @ fitted
    assert rise.min() > -1e-9 and abs(multiplier @ rise) < 1e-8  # it has the shape, and no table with it is nearer
    return fitted.reshape(target.shape)


def distance(target: Table, weight: Table) -> float:
    """From the exact solution, as a share of the largest entry."""
    off = isotonic_table(target, weight) - exact_by_the_dual(target, weight)
    return float(np.abs(off).max() / np.abs(target).max())


@pytest.mark.parametrize("observed", [0.0, 0.5, 0.9])
def test_two_way_isotonic_fit_where_weights_span_orders_of_magnitude(observed: float) -> None:
    for seed in range(20):
        random = np.random.default_rng(seed)
        shape = (int(random.integers(1, 9)), int(random.integers(1, 9)))
        target, weight = random.uniform(0, 5, shape), np.exp(random.uniform(np.log(PRIOR), np.log(50), shape))
        weight = np.where(
            random.random(shape) < observed, random.uniform(1, 50, shape), weight if not observed else PRIOR
        )
        assert distance(target, weight) < 1e-8


def test_a_fit_moves_by_no_more_than_its_target_where_numbers_are_equal() -> None:
    for seed in range(20):
        random = np.random.default_rng(seed)
        target, weight = random.integers(0, 3, (6, 7)).astype(float), random.choice((PRIOR, 50.0), (6, 7))
        moved = target + random.uniform(-1e-7, 1e-7, target.shape)
        assert isotonic_table(moved, weight) == pytest.approx(isotonic_table(target, weight), abs=1.1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("late", ["finish", "interrupt"])
def test_two_way_isotonic_fit_of_tables_with_cells_that_nobody_observed(
    late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the policy makes: k wanders, half of eight workers slow down, and late gradients are seen or not."""
    tables: list[tuple[Table, Table]] = []

    def remembered(target: Table, weight: Table, row: int) -> Table:
        tables.append((target, weight))
        return isotonic_row(target, weight, row)

    monkeypatch.setattr(time_model, "isotonic_row", remembered)
    for seed in range(5):
        random, model, h = np.random.default_rng(seed), TimeModel(memory=50), 8
        for iteration in range(60):
            k = int(np.clip(h + random.integers(-3, 4), 1, 8))
            slower = np.where(np.arange(8) < 4, 4.0, 1.0) if iteration >= 30 else np.ones(8)
            times = np.sort(slower * (0.4 + 0.6 * random.exponential(size=8)))
            for number, seconds in enumerate(times[: k if late == "interrupt" else 8], start=1):
                model.observe(h, number, float(seconds))
            h = k
            if iteration % 6 == 5:
                model.expected(h, 8)
    assert min(weight.min() for _, weight in tables) == PRIOR
    assert max(weight.max() for _, weight in tables) > 10
    for target, weight in tables:
        assert distance(target, weight) < 1e-8


def test_a_table_that_has_the_shape_already_is_left_alone() -> None:
    table = np.array([[2.0, 3.0, 4.0], [1.0, 2.0, 4.0]])
    assert isotonic_table(table, np.ones_like(table)) == pytest.approx(table)


def test_time_model_knows_nothing_before_the_first_observation() -> None:
    assert TimeModel(memory=10).expected(3, 4) is None


def test_time_model_returns_means_and_forgets_old_ones() -> None:
    model = TimeModel(memory=2)
    for seconds in (1.0, 3.0):
        model.observe(2, 1, seconds)
    # Weights 1/2 and 1: the newer one counts twice.
    assert model.expected(2, 1) == pytest.approx([(0.5 * 1 + 3) / 1.5])
    for _ in range(60):
        model.observe(2, 1, 9.0)
    assert model.expected(2, 1) == pytest.approx([9.0])


def test_time_model_evens_out_what_contradicts_its_shape() -> None:
    model = TimeModel(memory=1_000_000)
    for k, seconds in ((1, 1.0), (2, 4.0), (3, 2.0)):
        model.observe(3, k, seconds)
    assert model.expected(3, 3) == pytest.approx([1.0, 3.0, 3.0], rel=1e-5)


def test_time_model_guesses_what_nobody_observed_from_the_neighbours() -> None:
    model = TimeModel(memory=50)
    for k, seconds in ((1, 1.0), (2, 2.0), (3, 3.0)):
        model.observe(3, k, seconds)
    assert model.expected(1, 3) == pytest.approx([1.0, 2.0, 3.0], rel=1e-3)
    assert model.expected(3, 5) == pytest.approx([1.0, 2.0, 3.0, 3.0, 3.0], rel=1e-3)
    assert model.expected(3, 2) == pytest.approx([1.0, 2.0], rel=1e-3)


def test_time_model_remembers_a_bounded_number_of_rows() -> None:
    model = TimeModel(memory=50)
    for h in range(1, ROWS + 20):
        model.observe(h, 1, 1.0)
    assert len(model._rows) == ROWS and 1 not in model._rows


# -- G(k) --


def test_gain_on_a_quadratic_with_known_smoothness_variance_and_gradient() -> None:
    # F(x) = L/2 |x|^2 in one dimension: a step with gradient g = L x + noise of variance V.
    smoothness, variance, eta, k, workers = 3.0, 0.4, 0.05, 4, 4
    x = 2.0
    model = GainModel(eta, scaling="none", window=1)
    for _ in range(2):
        true_gradient = smoothness * x
        # The expected squared norm of the mean of k, and the expected loss after the step.
        seen = Statistics(k, true_gradient**2 + variance / k, variance, smoothness / 2 * x**2)
        model.observe(seen, workers)
        loss_after = (
            seen.loss - eta * true_gradient**2 + smoothness * eta**2 / 2 * (true_gradient**2 + variance / k)  # type: ignore[operator]
        )
        x = float(np.sqrt(2 * loss_after / smoothness))
    assert model.smoothness[0] == pytest.approx(smoothness)
    norm = model.norm[0]
    expected = [
        (eta - smoothness * eta**2 / 2) * norm - smoothness * eta**2 / 2 * variance / n for n in range(1, workers + 1)
    ]
    assert model.expected(workers) == pytest.approx(expected)


def test_gain_needs_all_three_estimates() -> None:
    model = GainModel(0.1, scaling="none", window=5)
    assert model.expected(4) is None
    model.observe(Statistics(1, 1.0, None, 2.0), 4)  # no variance yet
    assert model.expected(4) is None and not model.norm
    model.observe(Statistics(2, 1.0, 0.5, 2.0), 4)
    assert model.expected(4) is None
    model.observe(Statistics(1, 1.0, None, 1.9), 4)  # keeps the last variance
    assert model.expected(4) is not None
    assert list(model.variance) == [0.5] and model.norm[-1] == pytest.approx(0.5)


def test_gain_skips_an_estimate_of_smoothness_without_a_denominator_and_clips_negative_ones() -> None:
    model = GainModel(0.1, scaling="none", window=5)
    model.observe(Statistics(2, 0.0, 0.0, 2.0), 4)
    model.observe(Statistics(2, 1.0, 0.0, 2.0), 4)
    assert not model.smoothness
    model.observe(Statistics(2, 1.0, 0.0, 0.1), 4)
    assert list(model.smoothness) == pytest.approx([-360.0])
    assert model.estimates[2] == LEAST_SMOOTHNESS  # their mean, not each: half of the noise would be lost


def test_gain_sees_a_rising_loss_and_ignores_updates_without_one() -> None:
    model = GainModel(0.1, scaling="none", window=5)
    for loss, rose in ((1.0, False), (1.005, False), (1.02, True), (1.0, False)):
        model.observe(Statistics(2, 1.0, 0.5, loss), 4)
        assert model.loss_rose is rose
    model.observe(Statistics(2, 1.0, 0.5, None), 4)
    model.observe(Statistics(2, 1.0, 0.5, 5.0), 0)
    assert model.loss_rose is False


def test_learning_rate_proportional_to_k_reaches_its_full_value_with_a_full_round() -> None:
    assert GainModel(0.4, scaling="linear", window=5).eta([1, 2, 4, 8], 4) == pytest.approx([0.1, 0.2, 0.4, 0.4])
    assert GainModel(0.4, scaling="none", window=5).eta([1, 4], 4) == pytest.approx([0.4, 0.4])


def test_the_optimizers_own_learning_rate_is_taken_where_the_runtime_tells_it() -> None:
    model = GainModel(0.4, scaling="linear", window=5)
    model.observe(Statistics(2, 1.0, 0.5, 1.0, learning_rate=0.2), 4)
    assert model.eta([4], 4) == pytest.approx([0.2])


@pytest.mark.parametrize(("scaling", "expected"), [("linear", 0.05), ("sqrt", 0.1), ("none", 0.2), (None, 0.05)])
def test_the_rate_follows_k_as_the_run_says_unless_told_otherwise(scaling: str | None, expected: float) -> None:
    model = GainModel(0.4, scaling=None, window=5)
    model.observe(Statistics(2, 1.0, 0.5, 1.0, learning_rate=0.2, lr_scaling=scaling), 4)
    assert model.eta(1, 4) == pytest.approx(expected)
    told = GainModel(0.4, scaling="none", window=5)
    told.observe(Statistics(2, 1.0, 0.5, 1.0, lr_scaling=scaling), 4)
    assert told.eta(1, 4) == pytest.approx(0.4)


def test_a_loss_below_zero_rises_when_it_comes_nearer_to_zero() -> None:
    model = GainModel(0.1, scaling="none", window=5)
    for loss, rose in ((-5.0, False), (-5.2, False), (-5.0, True)):
        model.observe(Statistics(2, 1.0, 0.5, loss), 4)
        assert model.loss_rose is rose
