"""ReLoRA: merges leave the function alone, resets and warm restarts come on schedule, resume."""

import io

import pytest
import torch
from torch import nn

import memopt

from .test_lora import IDS, create, net, train


def adapters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if ".lora_" in n}


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-13), (torch.bfloat16, 0.1)]
)
def test_a_merge_leaves_the_function_unchanged(dtype, tolerance) -> None:
    """The merging step against the same step of LoRA, which does not merge."""
    merging, plain = net(dtype), net(dtype)
    train(merging, create("relora", merging, update_interval=4, lr=0.01), 4)
    train(plain, create("lora", plain, lr=0.01), 4)
    torch.testing.assert_close(merging(IDS), plain(IDS), rtol=tolerance, atol=tolerance)
    layer, before = merging.blocks[0]["up"], plain.blocks[0]["up"]
    assert not layer.lora_B["default"].weight.any() and before.lora_B["default"].weight.any()
    assert not torch.equal(layer.base_layer.weight, before.base_layer.weight)


def test_merged_weight_written_out() -> None:
    merging, plain = net(torch.float64), net(torch.float64)
    train(merging, create("relora", merging, update_interval=3, alpha=6.0), 3)
    train(plain, create("lora", plain, alpha=6.0), 3)
    for block, other in zip(merging.blocks, plain.blocks, strict=True):
        a, b = (other["up"].get_parameter(f"lora_{side}.default.weight") for side in "AB")
        expected = other["up"].base_layer.weight + 6.0 / 3 * (b @ a)
        torch.testing.assert_close(block["up"].base_layer.weight, expected)
        a, b = (other["conv"].get_parameter(f"lora_{side}.default.weight") for side in "AB")
        product = torch.einsum("or,rik->oik", b[:, :, 0], a)
        expected = other["conv"].base_layer.weight + 6.0 / 3 * product
        torch.testing.assert_close(block["conv"].base_layer.weight, expected)


def test_every_cycle_has_its_own_draw() -> None:
    model = net()
    optimizer = create("relora", model, update_interval=2)
    starts = [adapters(model)]
    for _ in range(3):
        train(model, optimizer, 2)
        starts.append(adapters(model))
    name = "blocks.0.up.lora_A.default.weight"
    draws = [start[name] for start in starts]
    assert all(not torch.equal(draws[i], draws[j]) for i in range(4) for j in range(i))
    again = net()
    train(again, create("relora", again, update_interval=2), 6)
    assert torch.equal(adapters(again)[name], draws[3])


def test_full_reset_on_schedule() -> None:
    model = net()
    optimizer = create("relora", model, update_interval=3)
    seen = []
    for _ in range(7):
        train(model, optimizer, 1)
        states = [optimizer.state[p] for _, p in optimizer.treated_parameters()]
        others = optimizer.state[model.head.weight]
        blank = all(not s["exp_avg"].any() and not s["exp_avg_sq"].any() for s in states)
        seen.append(({s["step"] for s in states}, blank, others["step"]))
    steps = [1, 2, 0, 1, 2, 0, 1]
    assert seen == [({s}, s == 0, i + 1) for i, s in enumerate(steps)]
    assert optimizer.state[model.head.weight]["exp_avg"].any()  # the rest is never reset


def test_magnitude_reset_keeps_the_largest_tenth() -> None:
    kept, reset = net(torch.float64), net(torch.float64)
    plain = create("lora", kept)
    optimizer = create("relora", reset, update_interval=4, reset="magnitude")
    train(kept, plain, 4)
    train(reset, optimizer, 4)
    pairs = zip(plain.treated_parameters(), optimizer.treated_parameters(), strict=True)
    for (_, before), (_, after) in pairs:
        for key in ("exp_avg", "exp_avg_sq"):
            old = plain.state[before][key].flatten()
            new = optimizer.state[after][key].flatten()
            count = old.numel() - round(0.9 * old.numel())
            largest = old.abs().topk(count).indices
            expected = torch.zeros_like(old)
            expected[largest] = old[largest]
            assert torch.equal(new, expected)
        assert optimizer.state[after]["step"] == 4


@pytest.mark.parametrize(("reset", "most"), [("full", 0), ("magnitude", 2)])
def test_resets_reach_narrow_storage(reset, most) -> None:
    model = net()
    optimizer = create("relora", model, update_interval=3, reset=reset, storage="bfloat16")
    train(model, optimizer, 3)
    moment = optimizer.state[model.blocks[0]["up"].lora_A["default"].weight]["exp_avg"]
    assert moment.dtype is torch.bfloat16 and moment.numel() == 18
    assert int((moment != 0).sum()) == most


def test_warm_restart_scales_what_is_applied_and_leaves_the_rate_alone() -> None:
    """With betas 0 and next to no eps every weight moves by exactly the rate."""
    model = net(torch.float64)
    optimizer = create(
        "relora", model, update_interval=4, restart_warmup=3, betas=(0.0, 0.0), eps=1e-300, lr=0.01
    )
    moved = []
    for _ in range(13):
        before = model.head.weight.detach().clone()
        train(model, optimizer, 1)
        moved.append((model.head.weight.detach() - before).abs().max().item())
        assert {group["lr"] for group in optimizer.param_groups} == {0.01}
    third = 0.01 / 3
    cycle = [0.0, third, 2 * third, 0.01]
    assert moved == pytest.approx([0.01] * 4 + cycle + cycle + [0.0], rel=1e-9)


@pytest.mark.parametrize("stop", [2, 3, 5])
def test_resume_in_bits_across_a_merge(stop) -> None:
    options = {"update_interval": 3, "restart_warmup": 2, "dropout": 0.0}
    undisturbed = net()
    train(undisturbed, create("relora", undisturbed, **options), 8)

    first = net()
    optimizer = create("relora", first, **options)
    train(first, optimizer, stop)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    second = net()
    resumed = create("relora", second, **options)
    second.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    train(second, resumed, 8 - stop)
    for (name, expected), found in zip(
        undisturbed.named_parameters(), second.parameters(), strict=True
    ):
        assert torch.equal(expected, found), name


def test_skipped_updates_do_not_count() -> None:
    model = net()
    optimizer = create("relora", model, update_interval=2, nonfinite="skip")
    train(model, optimizer, 1)
    model.head.weight.grad[0] = float("nan")
    optimizer.step()
    assert optimizer.param_groups[0]["updates"] == 1
    assert model.blocks[0]["up"].lora_B["default"].weight.any()
    train(model, optimizer, 1)
    assert not model.blocks[0]["up"].lora_B["default"].weight.any()


def test_update_in_backward_gives_the_same_bits() -> None:
    plain, timed = net(), net()
    train(plain, create("relora", plain, update_interval=2, restart_warmup=1), 5)
    optimizer = create("relora", timed, update_interval=2, restart_warmup=1)
    memopt.update_in_backward(optimizer)
    train(timed, optimizer, 5)
    for ours, other in zip(plain.parameters(), timed.parameters(), strict=True):
        assert torch.equal(ours, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"update_interval": 0}, "update_interval must be an integer of 1 or more"),
        ({"restart_warmup": -1}, "restart_warmup must be an integer of 0 or more"),
        ({"reset": "fulll"}, "unknown reset 'fulll'. Did you mean 'full'"),
    ],
)
def test_bad_arguments_leave_the_model_as_it_was(arguments, message) -> None:
    model = net()
    names = [n for n, _ in model.named_parameters()]
    with pytest.raises(ValueError, match=message):
        create("relora", model, **arguments)
    assert [n for n, _ in model.named_parameters()] == names
