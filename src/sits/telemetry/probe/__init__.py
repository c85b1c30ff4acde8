"""The probe in a vLLM process: a plug-in that times what stock vLLM does not tell.

`plugin` is what vLLM loads; `known` says which versions and which of their functions; `python -m sits.telemetry.probe` shows both.
"""
