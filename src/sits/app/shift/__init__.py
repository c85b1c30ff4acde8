"""Shifts carried out: the book kept of one, who turns its pages, and the commands that look and intervene."""
