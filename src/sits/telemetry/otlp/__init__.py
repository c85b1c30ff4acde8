"""OTLP, in and out: rows become spans, spans become rows, and both become bytes."""
