"""All-reduce figures of GPUs, written by `tools/fit_collectives.py`; do not edit by hand.

Segments of alpha + bytes / bandwidth; `mape` is the mean absolute relative error of each on its own data.  `nccl` is what NCCL
takes outside a graph, `custom graph` and `custom eager` are vLLM's kernel inside a captured graph and launched alone.

Sources: ai-dynamo/aiconfigurator 095f58a, aic-core systems data (Apache-2.0): NCCL 2.27.3 on A100, 2.29.2 on H100 and H200,
vLLM 0.14; its message sizes are elements of 2 bytes.
"""

from sits.core.errors import ConfigError
from sits.predict.collective import Measured
from sits.predict.gpu import Segment


def find_measured(gpu: str, ranks: int, kernel: str = "nccl") -> Measured:
    """The figures of a GPU by any part of its name, case left aside.

    >>> find_measured("h100", 8).mape < 0.05, find_measured("A100", 4, "custom graph").segments[0].alpha_us < 7
    (True, True)

    Raises:
        ConfigError: nobody measured that.

    """
    near = [one for one in FIGURES if gpu.lower() in one.gpu.lower() and one.kernel == kernel]
    for one in near:
        if one.ranks == ranks:
            return one
    known = ", ".join(sorted({f"{one.gpu} x{one.ranks} {one.kernel}" for one in near or FIGURES}))
    raise ConfigError(
        f"no all-reduce figures of {gpu!r} for {ranks} ranks ({kernel})",
        field="gpu",
        value=gpu,
        hint=f"known: {known}",
    )


FIGURES = (
    Measured(gpu="A100-SXM4-80GB", ranks=2, kernel="nccl", mape=0.0452, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(524288.0, 10.3394, 1.87675e-05), Segment(536870912.0, 36.3355, 5.29277e-06))),
    Measured(gpu="A100-SXM4-80GB", ranks=4, kernel="nccl", mape=0.0407, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(4194304.0, 14.5598, 1.45157e-05), Segment(536870912.0, 52.012, 7.03301e-06))),
    Measured(gpu="A100-SXM4-80GB", ranks=8, kernel="nccl", mape=0.0466, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(8388608.0, 22.5622, 1.30541e-05), Segment(536870912.0, 85.4506, 7.81168e-06))),
    Measured(gpu="A100-SXM4-80GB", ranks=2, kernel="custom graph", mape=0.0368, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(8192.0, 4.82564, 5.61629e-05), Segment(1048576.0, 5.15623, 5.28334e-06), Segment(8388608.0, 5.05455, 4.82573e-06))),
    Measured(gpu="A100-SXM4-80GB", ranks=4, kernel="custom graph", mape=0.027, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(16384.0, 5.13648, 5.27712e-05), Segment(524288.0, 5.42808, 1.73945e-05), Segment(8388608.0, 10.6259, 7.35572e-06))),
    Measured(gpu="A100-SXM4-80GB", ranks=8, kernel="custom graph", mape=0.0706, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(131072.0, 5.67768, 4.32827e-05), Segment(1048576.0, 15.6, 5.82412e-06), Segment(8388608.0, 0, 1.33171e-05))),
    Measured(gpu="A100-SXM4-80GB", ranks=2, kernel="custom eager", mape=0.0279, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(1024.0, 44.0585, 0), Segment(1048576.0, 43.7864, 2.08405e-07), Segment(8388608.0, 26.284, 8.51704e-06))),
    Measured(gpu="A100-SXM4-80GB", ranks=4, kernel="custom eager", mape=0.0497, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(4096.0, 45.9598, 0), Segment(1048576.0, 44.8452, 0), Segment(8388608.0, 36.4566, 1.03726e-05))),
    Measured(gpu="A100-SXM4-80GB", ranks=8, kernel="custom eager", mape=0.0264, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(16384.0, 44.3935, 6.2092e-05), Segment(1048576.0, 44.7308, 0), Segment(8388608.0, 13.4692, 1.48438e-05))),
    Measured(gpu="H100-SXM5-80GB", ranks=2, kernel="nccl", mape=0.0389, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(1048576.0, 6.687, 7.72933e-06), Segment(536870912.0, 20.8997, 3.31784e-06))),
    Measured(gpu="H100-SXM5-80GB", ranks=4, kernel="nccl", mape=0.0378, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(2097152.0, 9.74141, 8.54387e-06), Segment(536870912.0, 25.5496, 4.37857e-06))),
    Measured(gpu="H100-SXM5-80GB", ranks=8, kernel="nccl", mape=0.046, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(8388608.0, 15.9867, 8.22607e-06), Segment(536870912.0, 65.158, 3.82591e-06))),
    Measured(gpu="H100-SXM5-80GB", ranks=2, kernel="custom graph", mape=0.019, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(4096.0, 4.28094, 8.95337e-06), Segment(262144.0, 4.40742, 2.74064e-06), Segment(8388608.0, 4.19307, 3.93766e-06))),
    Measured(gpu="H100-SXM5-80GB", ranks=4, kernel="custom graph", mape=0.0188, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(65536.0, 4.57323, 1.1374e-05), Segment(524288.0, 3.9938, 1.40463e-05), Segment(8388608.0, 6.9138, 5.61294e-06))),
    Measured(gpu="H100-SXM5-80GB", ranks=8, kernel="custom graph", mape=0.0208, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(131072.0, 4.73654, 2.2767e-05), Segment(1048576.0, 13.8618, 3.23816e-06), Segment(8388608.0, 2.1096, 8.95765e-06))),
    Measured(gpu="H100-SXM5-80GB", ranks=2, kernel="custom eager", mape=0.0161, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(16384.0, 21.2233, 0), Segment(1048576.0, 20.2082, 6.20188e-07), Segment(8388608.0, 8.20316, 5.77408e-06))),
    Measured(gpu="H100-SXM5-80GB", ranks=4, kernel="custom eager", mape=0.00935, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(16384.0, 20.0749, 1.17099e-05), Segment(1048576.0, 19.3983, 4.65647e-07), Segment(8388608.0, 11.1087, 6.99988e-06))),
    Measured(gpu="H100-SXM5-80GB", ranks=8, kernel="custom eager", mape=0.0533, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(65536.0, 21.137, 1.67154e-07), Segment(524288.0, 12.4984, 6.76168e-05), Segment(8388608.0, 19.707, 7.37031e-06))),
    Measured(gpu="H200-SXM", ranks=2, kernel="nccl", mape=0.0344, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(1048576.0, 6.65044, 7.25663e-06), Segment(536870912.0, 19.9149, 3.30115e-06))),
    Measured(gpu="H200-SXM", ranks=4, kernel="nccl", mape=0.0354, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(2097152.0, 9.99251, 8.32398e-06), Segment(536870912.0, 23.2662, 4.3882e-06))),
    Measured(gpu="H200-SXM", ranks=8, kernel="nccl", mape=0.0504, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(8388608.0, 16.7519, 8.2534e-06), Segment(536870912.0, 70.8568, 3.67206e-06))),
    Measured(gpu="H200-SXM", ranks=2, kernel="custom graph", mape=0.0193, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(131072.0, 4.48443, 2.31727e-06), Segment(1048576.0, 4.02467, 4.09517e-06), Segment(8388608.0, 0.429149, 5.72179e-06))),
    Measured(gpu="H200-SXM", ranks=4, kernel="custom graph", mape=0.017, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(65536.0, 4.52465, 1.24289e-05), Segment(524288.0, 4.25894, 1.1938e-05), Segment(8388608.0, 6.03681, 5.68552e-06))),
    Measured(gpu="H200-SXM", ranks=8, kernel="custom graph", mape=0.0534, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(131072.0, 4.85592, 2.64615e-05), Segment(1048576.0, 11.0645, 3.13349e-05), Segment(8388608.0, 24.8112, 6.67312e-06))),
    Measured(gpu="H200-SXM", ranks=2, kernel="custom eager", mape=0.00919, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(16384.0, 18.9961, 0), Segment(1048576.0, 18.4054, 2.23674e-07), Segment(8388608.0, 7.46697, 5.36302e-06))),
    Measured(gpu="H200-SXM", ranks=4, kernel="custom eager", mape=0.0102, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(131072.0, 20.7035, 1.44072e-06), Segment(1048576.0, 20.1129, 0), Segment(8388608.0, 9.79952, 6.69439e-06))),
    Measured(gpu="H200-SXM", ranks=8, kernel="custom eager", mape=0.0134, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(131072.0, 34.5344, 8.68414e-06), Segment(1048576.0, 47.9977, 1.92521e-06), Segment(8388608.0, 26.2652, 6.75324e-06))),
)  # fmt: skip
