"""Admission: refuse early instead of queueing without bound.

Knows: how much this gateway has in flight, the limits, and when the caller's answer becomes useless.
Rules: limits of 0 do not limit; a request that is over the token limit all by itself is admitted when nothing
else is in flight, because "try again later" would be a lie for it; a refusal carries the time to wait.

Deliberately absent: per-tenant quotas (exact budgets are a ledger's business) and any guess of service time.
"""

from sits.core.decision import Decision
from sits.core.fleet import Admit


def admit(
    limits: Admit,
    *,
    inflight_requests: int,
    inflight_tokens: int,
    need_tokens: int,
    deadline_ns: int,
    now_ns: int,
) -> Decision:
    """Admit or refuse one request that would take `need_tokens` (prompt + allowed output).

    Outcomes: `admitted`, `refused_inflight`, `refused_tokens`, `refused_deadline`.  `deadline_ns` 0 = none.

    >>> limits = Admit(max_inflight=2)
    >>> admit(limits, inflight_requests=2, inflight_tokens=0, need_tokens=9, deadline_ns=0, now_ns=0).outcome
    'refused_inflight'
    """
    outcome = refusal(limits, inflight_requests, inflight_tokens, need_tokens, deadline_ns, now_ns)
    if outcome == "refused_deadline":
        return Decision(policy="admit", outcome=outcome, reasons={"late_ns": now_ns - deadline_ns})
    if outcome == "refused_inflight":
        return _refuse(outcome, limits, inflight_requests, limits.max_inflight, 1)
    if outcome:
        return _refuse(outcome, limits, inflight_tokens, limits.max_inflight_tokens, need_tokens)
    return Decision(
        policy="admit",
        outcome="admitted",
        reasons={"inflight_requests": inflight_requests, "inflight_tokens": inflight_tokens},
    )


def refusal(
    limits: Admit,
    inflight_requests: int,
    inflight_tokens: int,
    need_tokens: int,
    deadline_ns: int,
    now_ns: int,
) -> str:
    """The outcome of `admit` alone, empty when the request is admitted: what the live path asks for each request."""
    if deadline_ns and now_ns >= deadline_ns:
        return "refused_deadline"
    if limits.max_inflight and inflight_requests >= limits.max_inflight:
        return "refused_inflight"
    most = limits.max_inflight_tokens
    if most and inflight_requests and inflight_tokens + need_tokens > most:
        return "refused_tokens"
    return ""


def _refuse(outcome: str, limits: Admit, used: int, limit: int, need: int) -> Decision:
    reasons = {"used": used, "need": need, "limit": limit, "retry_after_ns": limits.retry_after}
    return Decision(policy="admit", outcome=outcome, reasons=reasons)
