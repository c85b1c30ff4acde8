"""Faces: the `sitsctl` command, the report, the boards."""
