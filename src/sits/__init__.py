"""SITS: time every LLM request at 17 breakpoints, name the cause of a slow tail, prove the fix.

Importing `sits` does no work: no file is opened, no heavy library loaded.  Rooms are imported by name
(`sits.predict.kv`, `sits.gateway.pipeline`); `ARCHITECTURE.md` is the map.
"""

__version__ = "0.1.0"
