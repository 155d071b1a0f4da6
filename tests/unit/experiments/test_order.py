"""The order of rows: a function of the data seed alone, whoever loads them."""

from pathlib import Path

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from experiments.data import load_tokens
from experiments.data.prepare import prepare
from experiments.order import Order
from experiments.pretrain import collate
from experiments.spec import DataSpec

BATCH = 6


@pytest.fixture(scope="module")
def rows(shared: Path, tmp_path_factory: pytest.TempPathFactory):
    """Real C4, one document a row."""
    spec = DataSpec(
        source="c4",
        path=str(shared / "data" / "c4"),
        tokenizer={"kind": "local", "path": str(shared / "data" / "tokenizers" / "t5-base")},
        sequence_length=64,
        layout="papers",
        max_documents=120,
    )
    folder = tmp_path_factory.mktemp("c4") / "data"
    prepare(spec, folder)
    return load_tokens(folder).train


def loaded(rows, seed: int, workers: int = 0, length: int = 120) -> list[np.ndarray]:
    """Batches of one process, as Trainer's loader makes them."""
    loader = DataLoader(
        Order(rows, length, seed),
        batch_size=BATCH,
        shuffle=False,
        num_workers=workers,
        collate_fn=collate,
    )
    return [batch["input_ids"].numpy() for batch in loader]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_change_the_order(rows, workers: int) -> None:
    alone, with_workers = loaded(rows, seed=3), loaded(rows, seed=3, workers=workers)
    assert all(np.array_equal(a, b) for a, b in zip(alone, with_workers, strict=True))


def test_seeds_give_orders_and_every_document_once(rows) -> None:
    one, again, other = (np.concatenate(loaded(rows, seed)) for seed in (3, 3, 4))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    everything = sorted(map(tuple, (rows[n]["input_ids"] for n in range(len(rows)))))
    assert sorted(map(tuple, one)) == sorted(map(tuple, other)) == everything


def test_a_second_epoch_has_another_order_and_every_document_once_more(rows) -> None:
    both = np.concatenate(loaded(rows, seed=3, length=240))
    first, second = both[:120], both[120:]
    assert not np.array_equal(first, second)
    assert sorted(map(tuple, first)) == sorted(map(tuple, second))


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_each_update_without_overlap(rows, processes: int) -> None:
    """What accelerate hands to each process of a run; together it is one process's batch."""
    order = Order(rows, 120, seed=3)
    alone = np.concatenate(loaded(rows, seed=3))
    parts = []
    for rank in range(processes):
        batches = BatchSampler(SequentialSampler(order), BATCH // processes, drop_last=True)
        sharded = BatchSamplerShard(batches, num_processes=processes, process_index=rank)
        parts.append([[order[i]["input_ids"] for i in batch] for batch in sharded])
    updates = [np.concatenate(step) for step in zip(*parts, strict=True)]
    assert np.array_equal(np.concatenate(updates), alone)
