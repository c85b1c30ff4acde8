"""Profiles for people: the commands, the flame graph, the page it stands on."""
