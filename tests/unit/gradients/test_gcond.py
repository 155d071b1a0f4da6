"""GCond's rules on conflicts made by hand, and against the same rules on plain vectors."""

import io
import math

import pytest
import torch
from torch import Tensor, nn

from memopt import NonFiniteGradientError
from memopt.errors import MiniBatchError
from memopt.gradients import GCond
from memopt.gradients.conflicts import Rules, resolve


def at(cosine: float, length: float = 1.0) -> list[float]:
    """A plane vector at this cosine to (1, 0)."""
    return [length * cosine, length * math.sqrt(1 - cosine**2)]


class Plane:
    """Two tasks whose gradients are given vectors of the plane."""

    def __init__(self, **options) -> None:
        self.weight = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
        defaults = {"accumulation": "every", "momentum": 0.0, "storage": "float32"}
        self.gcond = GCond([self.weight], {"a": 1.0, "b": 1.0}, 1, **{**defaults, **options})

    def step(self, a: list[float], b: list[float]) -> Tensor:
        for task, gradient in (("a", a), ("b", b)):
            vector = torch.tensor(gradient, dtype=torch.float64)
            self.gcond.accumulate(task, (self.weight * vector).sum(), of=1)
        self.report = self.gcond.combine()
        return self.weight.grad


def close(got: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


# ---- values by hand ------------------------------------------------------------------------


def test_agreement_is_the_sum() -> None:
    plane = Plane()
    close(plane.step([1.0, 0.0], [0.0, 1.0]), [1.0, 1.0])  # c = 0 is not below weak
    close(plane.step([1.0, 0.0], [2.0, 1.0]), [3.0, 1.0])
    assert plane.report.conflicts == []
    assert plane.report.norms == pytest.approx({"a": 1.0, "b": 5**0.5})


def test_smooth_at_the_main_threshold_projects_both() -> None:
    # a + 0.5 b = (0.75, 0.433), b + 0.5 a = (0, 0.866)
    close(Plane().step([1.0, 0.0], at(-0.5)), [0.75, 0.75 * 3**0.5])


def test_smooth_halfway_to_main() -> None:
    # c = -0.25: a(c) = pi/4, sin 0.70711; b = (-0.25, 0.96825)
    plane = Plane()
    share = 0.25 * math.sin(math.pi / 4)
    winner = [1 - 0.25 * share, 0.9682458 * share]
    loser = [-0.25 + share, 0.9682458]
    close(plane.step([1.0, 0.0], at(-0.25)), [w + b for w, b in zip(winner, loser, strict=True)])
    assert plane.report.conflicts == [("a", "b", pytest.approx(-0.25), "a")]


def test_smooth_between_main_and_critical_spares_the_winner_partly() -> None:
    # c = -0.65, half of the way: a(c) = pi/2 (1 + 0.5^2) = 112.5 degrees, sin 0.92388
    b = at(-0.65)
    winner = [1 + 0.65 * 0.9238795 * b[0], 0.65 * 0.9238795 * b[1]]
    loser = [0.0, b[1]]  # fully projected
    close(Plane().step([1.0, 0.0], b), [winner[0] + loser[0], winner[1] + loser[1]])


def test_smooth_beyond_critical_leaves_the_winner_alone() -> None:
    close(Plane().step([1.0, 0.0], at(-0.9)), [1.0, at(-0.9)[1]])
    close(Plane().step([1.0, 0.0], [-1.0, 0.0]), [1.0, 0.0])  # nothing is left of the loser


@pytest.mark.parametrize(
    "cosine, expected",
    [
        (-0.9, [1.0, 0.0]),  # the loser is dropped
        (-0.65, [1.0, at(-0.65)[1]]),  # the loser is projected
        (-0.5, [0.75, 0.75 * 3**0.5]),  # main itself is weak: both are projected
        (0.1, [1.1, at(0.1)[1]]),
    ],
)
def test_zones(cosine, expected) -> None:
    close(Plane(mode="zones").step([1.0, 0.0], at(cosine)), expected)


def test_strength_is_the_length_against_its_own_mean() -> None:
    # means start at 1: b's is 0.95 + 0.05 * 3 = 1.1, so 3 / 1.1 against 1: b wins and stays
    plane = Plane()
    close(plane.step([1.0, 0.0], [-3.0, 0.0]), [-3.0, 0.0])
    # with a weight on strength of nothing the tie goes to the first
    close(Plane(score_weights=(1.0, 0.0)).step([1.0, 0.0], [-3.0, 0.0]), [1.0, 0.0])


def test_stability_is_the_cosine_with_the_last_gradient() -> None:
    # step 2: a has turned by 90 degrees, b has not: 0.2 * strength against 0.8 + 0.2 * strength
    plane = Plane(dominance_window=0)
    plane.step([0.0, 1.0], [-1.0, 0.0])
    close(plane.step([2.0, 0.0], [-1.0, 0.0]), [-1.0, 0.0])
    # a gradient that has turned round counts as turned by 90 degrees, not as less
    other = Plane(dominance_window=0)
    other.step([-2.0, 0.0], [0.0, 1.0])
    close(other.step([2.0, 0.0], [-1.0, 0.0]), [2.0, 0.0])


def test_three_wins_in_a_row_make_a_task_lose_once() -> None:
    plane, winners = Plane(), []
    for _ in range(9):
        plane.step([1.0, 0.0], [-1.0, 0.0])
        winners.append(plane.report.conflicts[0][3])
    assert "".join(winners) == "aaabaaaba"
    never = Plane(dominance_window=0)
    for _ in range(9):
        close(never.step([1.0, 0.0], [-1.0, 0.0]), [1.0, 0.0])


@pytest.mark.parametrize("previous, winner", [("raw", "b"), ("resolved", "a")])
def test_last_gradients_are_raw_or_resolved(previous, winner) -> None:
    plane = Plane(mode="zones", previous=previous, dominance_window=0)
    plane.step([1.0, 0.0], at(-0.9))  # a wins the tie, b is dropped
    # a has turned by 90 degrees; b's cosine with what it was is 0.69, and 0 with what was left
    plane.step([0.0, -1.0], at(-0.3))
    assert plane.report.conflicts[0][3] == winner


def test_a_capped_gradient_keeps_its_direction() -> None:
    close(Plane(norm_cap=2.0).step([0.0, 8.0], [1.0, 0.0]), [1.0, 2.0])


def test_zero_and_vanished_gradients_are_no_conflict() -> None:
    plane = Plane()
    close(plane.step([0.0, 0.0], [-1.0, 0.0]), [-1.0, 0.0])
    close(plane.step([1e-12, 0.0], [-1e-12, 0.0]), [1e-12, 0.0])  # small is not zero
    # opposed exactly: nothing of the loser is left, and its rounding error has no second say
    assert len(plane.report.conflicts) == 1


# ---- the same rules on vectors ---------------------------------------------------------------


def by_vectors(grads: list[Tensor], last: list[Tensor], means, history, rules: Rules) -> Tensor:
    grads, won = [g.clone() for g in grads], list(history)
    critical, main, weak = rules.thresholds

    def cos(x: Tensor, y: Tensor) -> float:
        return float(x @ y / (x.norm() * y.norm()))

    for _ in range(2 * len(grads)):
        pairs = [
            (cos(grads[i], grads[j]), i, j)
            for i in range(len(grads))
            for j in range(i + 1, len(grads))
            if grads[i].norm() > 1e-9 and grads[j].norm() > 1e-9
        ]
        c, i, j = min(pairs, default=(1.0, 0, 0))
        if c >= weak:
            break
        strength = [float(grads[k].norm()) / means[k] for k in (i, j)]
        score = [
            0.8 * max(0.0, cos(grads[k], last[k])) + 0.2 * s / sum(strength)
            for k, s in zip((i, j), strength, strict=True)
        ]
        w, loser = (i, j) if score[0] >= score[1] else (j, i)
        if len(won) >= 3 and set(won[-3:]) == {w}:
            w, loser = loser, w
        gw, gl = grads[w].clone(), grads[loser].clone()
        on_loser, on_winner = (gw @ gl) / (gl @ gl) * gl, (gw @ gl) / (gw @ gw) * gw
        if rules.mode == "zones":
            if c < critical:
                grads[loser] = torch.zeros_like(gl)
            else:
                grads[loser] = gl - on_winner
            if c >= main:
                grads[w] = gw - on_loser
            else:
                won.append(w)
            continue
        if c >= main:
            angle = math.pi / 2 * (1 - (c - main) / (weak - main))
        else:
            angle = math.pi / 2 * (1 + min(1.0, (c - main) / (critical - main)) ** 2)
        grads[w] = gw - math.sin(angle) * on_loser
        grads[loser] = gl - math.sin(min(angle, math.pi / 2)) * on_winner
        won.append(w)
    return torch.stack(grads)


@pytest.mark.parametrize("mode", ["smooth", "zones"])
@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_coefficients_give_what_vectors_give(tasks, mode) -> None:
    rules, resolved = Rules(mode=mode), 0
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        grads, last = torch.randn(2, tasks, 3, generator=draw, dtype=torch.float64)
        means = (torch.rand(tasks, generator=draw) + 0.5).tolist()
        history = [0, 0, 0] if seed % 3 else []
        answer = resolve(
            grads @ grads.T, grads @ last.T, last.norm(dim=1).tolist(), means, history, rules
        )
        expected = by_vectors(list(grads), list(last), means, history, rules)
        torch.testing.assert_close(answer.coefficients @ grads, expected, rtol=1e-8, atol=1e-10)
        resolved += len(answer.conflicts)
    assert resolved > 15 * (tasks - 1)  # of random vectors in space, about half are in conflict


# ---- gathering, momentum, other parts ------------------------------------------------------


def losses(weight: nn.Parameter) -> dict:
    return {"a": lambda x: x * weight[0], "b": lambda x: x * weight[1]}


@pytest.mark.parametrize(
    "accumulation, expected",
    # a is 0.5 times the mean of its batches, b twice that of its own
    [("sequential", [0.5 * (1 + 2) / 2, 2 * (3 + 4) / 2]), ("every", [0.5 * 2.5, 2 * 2.5])],
)
def test_micro_batches(accumulation, expected) -> None:
    weight = nn.Parameter(torch.ones(2))
    gcond = GCond([weight], {"a": 0.5, "b": 2.0}, 4, accumulation=accumulation)
    report = gcond.step(losses(weight), iter([1.0, 2.0, 3.0, 4.0]))
    assert weight.grad.tolist() == expected  # bfloat16 has these numbers
    assert {k: float(v) for k, v in report.losses.items()} == dict(zip("ab", expected, strict=True))
    with pytest.raises(ValueError, match="ended before the 4"):
        gcond.step(losses(weight), iter([1.0]))
    assert gcond.step(losses(weight), iter([1.0, 2.0, 3.0, 4.0])).norms["a"] == expected[0]


def test_momentum_is_corrected_for_its_start() -> None:
    plane = Plane(momentum=0.85)
    close(plane.step([1.0, 0.0], [0.0, 2.0]), [1.0, 2.0])
    m = 0.85 * 0.15 * 1.0 + 0.15 * 3.0
    close(plane.step([3.0, 0.0], [0.0, 2.0]), [m / (1 - 0.85**2), 2.0])


def test_lion_is_a_sign_times_a_trust_ratio() -> None:
    # |p| = 5, |mhat| = sqrt(0.09 + 0.16) = 0.5: ratio 10; 1e-4 of it
    close(Plane(update="lion").step([0.3, 0.0], [0.0, -0.4]), [1e-3, -1e-3])
    close(Plane(update="lion", trust_clip=2.0).step([0.3, 0.0], [0.0, -0.4]), [2e-4, -2e-4])
    close(Plane(update="lion").step([0.0, 0.0], [0.0, 0.0]), [0.0, 0.0])


def test_frozen_and_unshared_weights() -> None:
    shared, own, frozen = (nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen.requires_grad_(False)
    gcond = GCond([shared, own, frozen], {"a": 1.0, "b": 1.0}, 1, accumulation="every")
    tasks = {"a": lambda x: x * shared.sum(), "b": lambda x: x * (own * frozen).sum()}
    gcond.step(tasks, iter([2.0]))
    assert shared.grad.tolist() == own.grad.tolist() == [2.0, 2.0]
    assert frozen.grad is None


def test_a_task_that_is_not_finite_is_named_and_changes_nothing() -> None:
    plane, twin = Plane(momentum=0.5), Plane(momentum=0.5)
    plane.step([1.0, 0.0], [-1.0, 0.5])
    twin.step([1.0, 0.0], [-1.0, 0.5])
    with pytest.raises(NonFiniteGradientError, match="task 'b'"):
        plane.step([1.0, 0.0], [float("nan"), 0.0])
    assert torch.equal(plane.step([0.0, 1.0], [1.0, -1.0]), twin.step([0.0, 1.0], [1.0, -1.0]))


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
@pytest.mark.parametrize("previous", ["raw", "resolved"])
def test_resume_equals_no_stop(previous, storage) -> None:
    options = {"momentum": 0.85, "previous": previous, "storage": storage}
    draw = torch.Generator().manual_seed(3)
    steps = torch.randn(12, 2, 2, generator=draw).tolist()
    through, first, second = Plane(**options), Plane(**options), Plane(**options)
    expected = [through.step(*pair).clone() for pair in steps]
    for pair in steps[:6]:
        first.step(*pair)
    file = io.BytesIO()
    torch.save(first.gcond.state_dict(), file)
    file.seek(0)
    second.gcond.load_state_dict(torch.load(file, weights_only=True))
    got = [second.step(*pair).clone() for pair in steps[6:]]
    assert all(map(torch.equal, got, expected[6:]))


def test_states_that_do_not_fit_are_refused() -> None:
    plane = Plane()
    other = GCond([nn.Parameter(torch.ones(3))], {"a": 1.0, "b": 1.0}, 2)
    with pytest.raises(ValueError, match="other parameters"):
        plane.gcond.load_state_dict(other.state_dict())
    other = GCond([plane.weight], {"a": 1.0, "c": 1.0}, 2)
    with pytest.raises(ValueError, match=r"\['a', 'c'\]"):
        plane.gcond.load_state_dict(other.state_dict())
    plane.gcond.accumulate("a", plane.weight.sum(), of=1)
    with pytest.raises(MiniBatchError, match="discard"):
        plane.gcond.state_dict()


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"micro_batches": 3}, "3 cannot be divided by 2 tasks"),
        ({"micro_batches": 0}, "micro_batches"),
        ({"weights": {}}, "at least one"),
        ({"mode": "smoth"}, "Did you mean 'smooth'"),
        ({"accumulation": "sequentially"}, "Did you mean 'sequential'"),
        ({"thresholds": (-0.5, -0.8, 0.0)}, "thresholds must rise"),
        ({"thresholds": (-1.5, -0.8, 0.0)}, "thresholds"),
        ({"score_weights": (-1.0, 2.0)}, "score_weights"),
        ({"momentum": 1.0}, "momentum"),
        ({"norm_average_beta": -0.1}, "norm_average_beta"),
        ({"dominance_window": -1}, "dominance_window"),
        ({"norm_cap": 0.0}, "norm_cap"),
        ({"remap_power": 0.0}, "remap_power"),
    ],
)
def test_bad_arguments(changes, words) -> None:
    given = {"params": [nn.Parameter(torch.ones(2))], "weights": {"a": 1.0, "b": 1.0}}
    with pytest.raises(ValueError, match=words):
        GCond(**{**given, "micro_batches": 2, **changes})


def test_bad_tasks() -> None:
    weight = nn.Parameter(torch.ones(2))
    gcond = GCond([weight], {"a": 1.0, "b": 1.0}, 2)
    with pytest.raises(ValueError, match=r"losses are of \['a'\]"):
        gcond.step({"a": lambda x: x * weight.sum()}, iter([1.0]))
    with pytest.raises(ValueError, match="task 'c'"):
        gcond.accumulate("c", weight.sum(), of=1)
