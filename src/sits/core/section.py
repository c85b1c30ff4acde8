"""The base of all sections of a `fleet.yaml`: immutable, keywords only, unknown keys refused.

It stands alone so that a part of the tree can live in a file of its own and still be a field of `Fleet`.
"""

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: immutable, keywords only."""
