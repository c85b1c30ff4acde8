"""The section `policy.cache`: answers that are given again, and for how long.

Rules: off unless a fleet asks for it; bounds are of one worker's memory, and each worker has its own; time bounds how long an
answer can outlive weights that were swapped under an old name (declare `artefact` on the arms of a release, and a new
artefact is another key at once).

Deliberately absent: a semantic cache (it needs an embedder, and similarity is no identity) and a cache that workers share.
"""

from typing import Literal

from sits.core.section import Section
from sits.core.units import Bytes, Ns


class ResponseCache(Section, frozen=True, kw_only=True):
    """Whole answers kept in a worker's memory, to be given again to exactly the same question.

    `scope`: who shares answers, all of a tenant or one unit of it.  `memory` and `entries` bound each worker's share;
    a body over `body_limit` is neither read nor kept, an answer over `answer_limit` is not kept.  `models` names what
    is cached, as callers ask for it; empty = all.  `tools`: also requests that declare functions.
    """

    kind: Literal["none", "exact"] = "none"
    scope: Literal["tenant", "unit"] = "tenant"
    ttl: Ns = Ns(600_000_000_000)
    memory: Bytes = Bytes(16 * 2**20)
    entries: int = 8192
    body_limit: Bytes = Bytes(256 * 2**10)
    answer_limit: Bytes = Bytes(256 * 2**10)
    any_temperature: bool = False
    tools: bool = False
    models: tuple[str, ...] = ()
