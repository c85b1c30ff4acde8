"""The example machine several entries compute with: an 8B model on one A100.

Deliberately absent: any other machine.
"""

from sits.predict.steptime import StepTime


def llama_8b_step() -> StepTime:
    """Step times of Llama-3-8B on an A100, from the fitted kernel figures."""
    from sits.core.fleet import Model  # noqa: PLC0415
    from sits.core.units import Bytes  # noqa: PLC0415
    from sits.predict.derive import derive_steptime  # noqa: PLC0415

    model = Model(
        name="llama-3-8b",
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate=14336,
        vocab=128256,
        weights=Bytes(16_060_000_000),
    )
    return derive_steptime(model, "A100-SXM4-80GB", 1)
