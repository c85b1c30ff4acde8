"""Several servers, or arrivals that are not Poisson (G/G/c): an approximation, its range, and its refusals.

With c servers of mean service S, rho = lam S / c, arrivals of variability Ca^2 and service of Cs^2 (Allen and Cunneen;
Kingman's heavy traffic):

    P(W > t) ~ P(wait) exp(-t 2 c (1 - rho) / (S (Ca^2 + Cs^2)))

P(wait) is Erlang's C for c / z servers at the same rho, z = 1 + (Ca^2 - 1) / 2 (Hayward's peakedness; c = 1 keeps z = 1): with
Erlang's C for c itself the P99 of bursty arrivals before many half-busy servers came out up to 68 % too low.  The sojourn
adds the service times by convolution.

Variability of real arrivals depends on how long one looks, so with a burstiness report the exponent is that of the
window x over which a backlog of t most likely comes together (Norros 1994 and Addie; with a flat curve it is the one above):

    min over x of  (t + (1 - rho) x)^2 / (2 V(x)),        V(x) = (S / c) x (IDC(x) + Cs^2)

Near saturation that window is minutes, at half load seconds, and z takes the IDC of one service time.

Range, against simulation, rho 0.5..0.85: renewal arrivals (c 1..32, Cs 0..2, Ca 0.5..3) P99 within 21 %, in nine cells of ten within
10 %; an IDC curve of such arrivals gives the same.  Rates that wander (a square wave, published traces) come out 4 % too low to
160 % too high: there it warns, on the safe side, where a Poisson assumption is up to 65 % too low.  Refused: variability above
CV 3 over the window that makes the P99, where single bursts decide and only a simulation tells.  One server with
Poisson arrivals has an exact answer (`queue`) and should use it.

Deliberately absent: mean waits of low loads, which this gets wrong by factors though P99 is right; engines that
batch (`queue_sharing`).
"""

import math

import numpy as np

from sits.core.errors import ConfigError
from sits.predict.burstiness import Burstiness
from sits.predict.queue import MOST_BUSY, QueuePrediction, quantile_ns, saturated
from sits.predict.queue_service import Service
from sits.predict.rate import check_rate

CV_MOST = 3.0
SERVERS_MOST = 100_000
RANGE_BUSY = (0.5, 0.9)

_WINDOWS = 300


def predict_servers(
    rate_per_s: float, service: Service, servers: int = 1, arrivals: "float | Burstiness" = 1.0
) -> QueuePrediction:
    """Predict `servers` servers for arrivals of a given CV (1 Poisson) or of a burstiness report.

    >>> from sits.predict.queue_service import gamma
    >>> p = predict_servers(64.0, gamma(100e6, 1.0), servers=8)                 # M/M/8
    >>> round(p.busy, 2), round(p.waits, 3), round(p.wait_mean_ns / 1e6, 1)
    (0.8, 0.458, 28.6)
    >>> bursty = predict_servers(64.0, gamma(100e6, 1.0), servers=8, arrivals=2.0)
    >>> bursty.p99_ns > 1.3 * p.p99_ns
    True

    Raises:
        ConfigError: variability above CV 3, no server, or a rate that is not above zero.

    """
    _check(rate_per_s, servers)
    mean_s = service.mean_ns / 1e9
    busy = rate_per_s * mean_s / servers
    assumed = [service.assumed] if service.assumed else []
    if busy >= MOST_BUSY:
        return saturated("servers", busy, tuple(assumed))
    wait = _Wait(rate_per_s, service, servers, arrivals)
    p50, p99 = (wait.quantile_ns(q) for q in (0.5, 0.99))
    if isinstance(arrivals, Burstiness):
        assumed.append(
            f"variability of arrivals is their IDC: {wait.idc_at(wait.window_s(p99)):.3g} over the "
            f"{wait.window_s(p99):.3g} s that make the P99"
        )
        if not arrivals.idc or wait.window_s(p99) > arrivals.idc[-1].window_s:
            assumed.append(
                "IDC beyond the longest measured window stays what it is there; record longer to know"
            )
    else:
        assumed.append(f"gaps between arrivals are independent, of CV {arrivals:g}")
    _refuse(wait.idc_at(wait.window_s(p99)), service)
    if not RANGE_BUSY[0] <= busy <= RANGE_BUSY[1]:
        assumed.append(f"{busy:.0%} busy is outside the range this approximation was judged in (50..90 %)")
    return QueuePrediction(
        method="servers",
        busy=busy,
        wait_mean_ns=wait.mean_ns,
        mean_ns=wait.mean_ns + service.mean_ns,
        p50_ns=p50,
        p99_ns=p99,
        waits=wait.waits,
        assumed=tuple(assumed),
    )


class _Wait:
    """The wait of one queue: its share, its tail over all windows at once, and the window behind a length."""

    def __init__(
        self, rate_per_s: float, service: Service, servers: int, arrivals: "float | Burstiness"
    ) -> None:
        self._service = service
        one_s = service.mean_ns / 1e9 / servers
        busy = rate_per_s * one_s
        self._arrivals = arrivals
        peaked = 1.0 if servers == 1 else 1.0 + (self.idc_at(service.mean_ns / 1e9) - 1.0) / 2.0
        self.waits = erlang_c(servers / peaked, busy)
        # From a hundredth of a service to the memory of a queue this full; a flat curve has its minimum inside.
        self._windows = np.geomspace(one_s / 100.0, 300.0 * one_s * servers / (1.0 - busy) ** 2, _WINDOWS)
        idc = np.array([self.idc_at(float(w)) for w in self._windows])
        self._drained = (1.0 - busy) * self._windows
        self._variance = 2.0 * one_s * self._windows * (idc + service.cv**2)
        longest = service.mean_ns / 1e9 * 1000.0 / (1.0 - busy) * float((idc + service.cv**2).max() + 1.0)
        self._lengths = np.concatenate([[0.0], np.geomspace(longest / 1e7, longest, _WINDOWS)])
        self._tail = np.array([self._above(float(t)) for t in self._lengths])
        self.mean_ns = float(np.trapezoid(self._tail, self._lengths)) * 1e9

    def idc_at(self, window_s: float) -> float:
        """What is known of the arrivals' variability."""
        return (
            self._arrivals.idc_at(window_s) if isinstance(self._arrivals, Burstiness) else self._arrivals**2
        )

    def _above(self, t_s: float) -> float:
        if self._variance[-1] <= 0.0:
            return 0.0
        return self.waits * math.exp(-float(np.min((t_s + self._drained) ** 2 / self._variance)))

    def window_s(self, sojourn_ns: float) -> float:
        """The window in which a backlog of that length most likely comes together."""
        t_s = max(0.0, sojourn_ns - self._service.mean_ns) / 1e9
        if self._variance[-1] <= 0.0:
            return float(self._windows[0])
        return float(self._windows[int(np.argmin((t_s + self._drained) ** 2 / self._variance))])

    def quantile_ns(self, q: float) -> float:
        """The sojourn, wait and service, that a share q does not exceed."""
        logs = np.log(np.maximum(self._tail, 1e-300))

        def above(t_ns: float) -> float:
            left = (t_ns - self._service.values_ns) / 1e9
            waited = np.exp(np.interp(left, self._lengths, logs))
            return float(np.where(left < 0.0, 1.0, waited) @ self._service.weights)

        return quantile_ns(above, q, self.mean_ns + self._service.mean_ns)


def erlang_c(servers: float, busy: float) -> float:
    """Share of requests that wait in M/M/c, for any c above zero, whole or not.

    >>> round(erlang_c(1, 0.8), 6), round(erlang_c(8, 0.8), 4), round(erlang_c(2.5, 0.8), 4)
    (0.8, 0.4576, 0.677)
    """
    load = servers * busy
    whole = math.floor(servers)
    nodes, weights = np.polynomial.laguerre.laggauss(60)
    # Erlang's B for the fractional part, from its integral form, then the usual recursion up to c.
    blocked = 1.0 / float(weights @ (1.0 + nodes / load) ** (servers - whole))
    for k in range(whole):
        blocked = load * blocked / (servers - whole + k + 1.0 + load * blocked)
    return blocked / (1.0 - busy * (1.0 - blocked))


def _refuse(ca2: float, service: Service) -> None:
    for what, cv in (("arrivals", math.sqrt(ca2)), ("service times", service.cv)):
        if cv > CV_MOST:
            raise ConfigError(
                f"{what} have a CV of {cv:.3g} over the time this queue remembers: no formula is right above {CV_MOST:g}",
                field=what.split()[0],
                value=round(cv, 3),
                hint="simulate: replay the recorded arrivals",
            )


def _check(rate_per_s: float, servers: int) -> None:
    check_rate(rate_per_s)
    if not 1 <= servers <= SERVERS_MOST:
        raise ConfigError(
            f"{servers} servers", field="servers", value=servers, hint=f"give 1..{SERVERS_MOST}"
        )
