"""Configurations of other gateways read into a fleet.yaml, with an account of what became of each of their fields.

Rules that hold for every importer: each leaf of the source is told, as mapped, mapped with a difference, or lost.  A criterion that
cannot be written here loses the rule it stands in, for a route without it would take requests that are not meant for it.  No secret
is copied or shown.  What comes out loads.
"""
