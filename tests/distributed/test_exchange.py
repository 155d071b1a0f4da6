"""M processes against one, with gloo: the algebra of the AdamA sheet, section 3.5 and 3.6."""

import pytest
import torch
from torch import multiprocessing, nn

import memopt
from memopt import distributed as exchange

from . import workers

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module", params=[2, 4])
def spawned(request, tmp_path_factory) -> list[dict]:
    """What every process returned, for 2 and for 4 of them."""
    folder = tmp_path_factory.mktemp(f"processes{request.param}")
    multiprocessing.spawn(workers.worker, (request.param, str(folder)), nprocs=request.param)
    return [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]


def close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    # float64 sums in another order: 1e-16 a term, amplified where sqrt(v) is small
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scenario", workers.SCENARIOS)
def test_equals_one_process(spawned, scenario) -> None:
    expected = workers.alone(scenario, len(spawned))
    for result in spawned:
        close(result[scenario]["weights"], expected["weights"])
        assert result[scenario]["norms"] == pytest.approx(expected["norms"], rel=1e-6)


@pytest.mark.parametrize("scenario", workers.SCENARIOS)
def test_processes_keep_equal_bits(spawned, scenario) -> None:
    first = spawned[0][scenario]["weights"]
    for result in spawned[1:]:
        assert all(map(torch.equal, result[scenario]["weights"], first))


def test_shards_divide_the_states_and_keep_the_numbers(spawned) -> None:
    parameters = len(list(workers.Net(0).parameters()))
    owned = [result["adama-shards-2"]["moments"] for result in spawned]
    assert sum(owned) == parameters
    assert max(owned) < parameters
    for result in spawned:
        shards, whole = (result[f"adama-{how}-2"]["weights"] for how in ("shards", "gradients"))
        # gloo's reduce and all_reduce add in different orders
        close(shards, whole)


def test_the_two_variants_differ(spawned) -> None:
    """Squares of M N small gradients are not squares of N averages."""
    states, gradients = (spawned[0][f"adama-{how}-2"]["weights"] for how in ("states", "gradients"))
    assert max((a - b).abs().max() for a, b in zip(states, gradients, strict=True)) > 1e-3


def test_states_of_layers_that_only_some_processes_use(spawned) -> None:
    size = len(spawned)
    model, optimizer = workers.build("AdamA", seed=0)
    for step in range(workers.STEPS):
        for rank, part in enumerate(workers.inputs(step, 1, size)[0]):
            (model(part, (0,) if rank == 0 else (1,)) / size).backward()
        optimizer.step()
        optimizer.zero_grad()
    for result in spawned:
        close(result["apart-states"]["weights"], [p.detach() for p in model.parameters()])


def test_mixed_up_gradients_are_an_error(spawned) -> None:
    for result in spawned:
        assert "in another order" in result["apart-gradients"]
        assert "reduce_states" in result["apart-gradients"]


def test_what_cannot_exchange_says_so() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(memopt.UnsupportedCombination, match="DistributedDataParallel or FSDP"):
        exchange.reduce_gradients(torch.optim.SGD([weight], lr=0.1))
    lomo = memopt.LOMO([weight], lr=0.1)
    for how in (exchange.reduce_states, exchange.shard_states):
        with pytest.raises(memopt.UnsupportedCombination, match="use reduce_gradients"):
            how(lomo)
    galore = memopt.GaLore([nn.Parameter(torch.zeros(2, 2))], rank=1)
    memopt.accumulate_in_backward(galore)
    with pytest.raises(memopt.UnsupportedCombination, match="each process's own basis"):
        exchange.reduce_states(galore)
