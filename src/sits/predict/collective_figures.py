"""All-reduce figures of GPUs; `FIGURES` is written by `tools/fit_collectives.py`, do not edit it by hand.

Segments of alpha + bytes / bandwidth; `mape` is the mean absolute relative error of each on its own data.  `nccl` is what NCCL
takes outside a graph (`two nodes` too), `custom graph` and `custom eager` are vLLM's kernel inside a captured graph and launched alone.

Sources: ai-dynamo/aiconfigurator 095f58a, aic-core systems data (Apache-2.0): NCCL 2.27.3 on A100, 2.29.2 on H100 and H200,
vLLM 0.14; its message sizes are elements of 2 bytes.  `two nodes`, 16 GPUs of two DGX A100: microsoft/vidur 7d47513, data/profiling (MIT), 2023.
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
    known = ", ".join(sorted({f"{one.gpu} x{one.ranks}" for one in near} or {one.gpu for one in FIGURES}))
    raise ConfigError(
        f"no all-reduce figures of {gpu!r} for {ranks} ranks ({kernel})",
        field="gpu",
        value=gpu,
        hint=f"known: {known}",
    )


FIGURES = (
    Measured(gpu="A100-SXM4-80GB", ranks=2, kernel="nccl", mape=0.0207, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(8192.0, 9.91363, 0.000128865), Segment(524288.0, 12.1583, 1.25439e-05), Segment(536870912.0, 36.3355, 5.29277e-06),)),
    Measured(gpu="A100-SXM4-80GB", ranks=4, kernel="nccl", mape=0.0211, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(32768.0, 13.8669, 0.000106916), Segment(4194304.0, 16.0913, 1.30447e-05), Segment(536870912.0, 52.012, 7.03301e-06),)),
    Measured(gpu="A100-SXM4-80GB", ranks=8, kernel="nccl", mape=0.0223, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(16384.0, 21.3862, 7.09244e-05), Segment(8388608.0, 25.767, 1.22881e-05), Segment(536870912.0, 85.4506, 7.81168e-06),)),
    Measured(gpu="A100-SXM4-80GB", ranks=2, kernel="custom graph", mape=0.0363, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(8192.0, 4.82564, 5.61629e-05), Segment(1048576.0, 5.15623, 5.28334e-06), Segment(8388608.0, 5.05455, 4.82573e-06),)),
    Measured(gpu="A100-SXM4-80GB", ranks=4, kernel="custom graph", mape=0.0271, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(16384.0, 5.13648, 5.27712e-05), Segment(524288.0, 5.42808, 1.73945e-05), Segment(8388608.0, 10.6259, 7.35572e-06),)),
    Measured(gpu="A100-SXM4-80GB", ranks=8, kernel="custom graph", mape=0.0706, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(131072.0, 5.67768, 4.32827e-05), Segment(1048576.0, 15.6, 5.82412e-06), Segment(8388608.0, 0, 1.33171e-05),)),
    Measured(gpu="A100-SXM4-80GB", ranks=2, kernel="custom eager", mape=0.0376, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(8388608.0, 43.94, 1.01193e-07),)),
    Measured(gpu="A100-SXM4-80GB", ranks=4, kernel="custom eager", mape=0.0668, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(8388608.0, 44.8179, 2.20037e-06),)),
    Measured(gpu="A100-SXM4-80GB", ranks=8, kernel="custom eager", mape=0.0557, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(8388608.0, 44.5237, 3.27054e-06),)),
    Measured(gpu="H100-SXM5-80GB", ranks=2, kernel="nccl", mape=0.0239, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(16384.0, 6.16429, 6.75244e-05), Segment(1048576.0, 6.79376, 7.57742e-06), Segment(536870912.0, 20.8997, 3.31784e-06),)),
    Measured(gpu="H100-SXM5-80GB", ranks=4, kernel="nccl", mape=0.0318, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(16384.0, 9.10012, 0.000204923), Segment(4194304.0, 10.594, 7.52593e-06), Segment(536870912.0, 26.3117, 4.34613e-06),)),
    Measured(gpu="H100-SXM5-80GB", ranks=8, kernel="nccl", mape=0.0232, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(8192.0, 15.5659, 4.82243e-05), Segment(8388608.0, 18.1187, 7.24737e-06), Segment(536870912.0, 65.158, 3.82591e-06),)),
    Measured(gpu="H100-SXM5-80GB", ranks=2, kernel="custom graph", mape=0.019, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(4096.0, 4.28094, 8.95337e-06), Segment(262144.0, 4.40742, 2.74064e-06), Segment(8388608.0, 4.19307, 3.93766e-06),)),
    Measured(gpu="H100-SXM5-80GB", ranks=4, kernel="custom graph", mape=0.0188, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(65536.0, 4.57323, 1.1374e-05), Segment(524288.0, 3.9938, 1.40463e-05), Segment(8388608.0, 6.9138, 5.61294e-06),)),
    Measured(gpu="H100-SXM5-80GB", ranks=8, kernel="custom graph", mape=0.0208, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(131072.0, 4.73654, 2.2767e-05), Segment(1048576.0, 13.8618, 3.23816e-06), Segment(8388608.0, 2.1096, 8.95765e-06),)),
    Measured(gpu="H100-SXM5-80GB", ranks=2, kernel="custom eager", mape=0.0608, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(8388608.0, 20.5574, 1.67503e-06),)),
    Measured(gpu="H100-SXM5-80GB", ranks=4, kernel="custom eager", mape=0.0647, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(8388608.0, 19.871, 5.83507e-06),)),
    Measured(gpu="H100-SXM5-80GB", ranks=8, kernel="custom eager", mape=0.0865, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(8388608.0, 21.0426, 7.17829e-06),)),
    Measured(gpu="H200-SXM", ranks=2, kernel="nccl", mape=0.0212, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(4096.0, 5.9305, 0.000185381), Segment(1048576.0, 6.98813, 6.49479e-06), Segment(536870912.0, 19.9149, 3.30115e-06),)),
    Measured(gpu="H200-SXM", ranks=4, kernel="nccl", mape=0.0241, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(8192.0, 9.45148, 7.42023e-05), Segment(4194304.0, 10.7409, 6.97848e-06), Segment(536870912.0, 24.7586, 4.37675e-06),)),
    Measured(gpu="H200-SXM", ranks=8, kernel="nccl", mape=0.0294, from_bytes=512.0, to_bytes=536870912.0, segments=(Segment(32768.0, 15.9728, 7.34948e-05), Segment(8388608.0, 19.0634, 7.06216e-06), Segment(536870912.0, 70.8568, 3.67206e-06),)),
    Measured(gpu="H200-SXM", ranks=2, kernel="custom graph", mape=0.0193, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(131072.0, 4.48443, 2.31727e-06), Segment(1048576.0, 4.02467, 4.09517e-06), Segment(8388608.0, 0.429149, 5.72179e-06),)),
    Measured(gpu="H200-SXM", ranks=4, kernel="custom graph", mape=0.017, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(65536.0, 4.52465, 1.24289e-05), Segment(524288.0, 4.25894, 1.1938e-05), Segment(8388608.0, 6.03681, 5.68552e-06),)),
    Measured(gpu="H200-SXM", ranks=8, kernel="custom graph", mape=0.0616, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(131072.0, 4.85592, 2.64615e-05), Segment(1048576.0, 11.0645, 3.13349e-05), Segment(8388608.0, 24.8112, 6.67312e-06),)),
    Measured(gpu="H200-SXM", ranks=2, kernel="custom eager", mape=0.058, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(8388608.0, 18.7716, 2.03509e-06),)),
    Measured(gpu="H200-SXM", ranks=4, kernel="custom eager", mape=0.0573, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(8388608.0, 20.4379, 4.00734e-06),)),
    Measured(gpu="H200-SXM", ranks=8, kernel="custom eager", mape=0.0698, from_bytes=256.0, to_bytes=8388608.0, segments=(Segment(8388608.0, 34.7556, 5.68603e-06),)),
    Measured(gpu="A100-SXM4-80GB", ranks=16, kernel="two nodes", mape=0.0554, from_bytes=2048.0, to_bytes=67108864.0, segments=(Segment(559104.0, 65.4357, 0.000471774), Segment(10387456.0, 277.862, 0.000229562), Segment(67108864.0, 486.797, 9.8564e-05),)),
)  # fmt: skip
