"""The kernels alone, in a loop of your own and on any device: ``python examples/kernels.py``."""

import torch
from torch import nn

from overlap import ops


def main() -> None:
    """Train a small model with its weights in one flat buffer, beside a copy that torch trains."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, twin = (nn.Linear(64, 64, device=device) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    adamw = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
    peer = torch.optim.AdamW(twin.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)

    sizes = [param.numel() for param in model.parameters()]
    slots = tuple(ops.PackSlot(sum(sizes[:i]), size, size) for i, size in enumerate(sizes))
    master, exp_avg, exp_avg_sq, grad = torch.zeros(4, sum(sizes), device=device)
    shard, norm = torch.empty_like(master, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float64, device=device)
    ops.pack(list(model.parameters()), master.view(1, -1), slots)

    for step, x in enumerate(torch.randn(10, 32, 64, device=device), start=1):
        for each in (model, twin):
            each.zero_grad()
            (each(x) - x.flip(-1)).square().mean().backward()
        ops.pack([param.grad for param in model.parameters()], grad.view(1, -1), slots)
        ops.grad_norm(grad, norm)
        clip = (0.1 / (norm[:1].sqrt() + 1e-6)).clamp(max=1.0).float()  # stays on the device, as does the flag
        ops.adamw(master, exp_avg, exp_avg_sq, grad, shard, **adamw, step=step, grad_scale=clip, skip=norm[1:])
        ops.unpack(master.view(1, -1), [param.detach() for param in model.parameters()], slots)
        nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        peer.step()
    ours, theirs = (nn.utils.parameters_to_vector(each.parameters()).detach() for each in (model, twin))
    print(f"{ops.face_name(ours.device)} face, against torch: {float((ours - theirs).abs().max()):.1e}")
    print(f"bf16 weights for the next gather: {'right' if torch.equal(shard, master.bfloat16()) else 'WRONG'}")


if __name__ == "__main__":
    main()
