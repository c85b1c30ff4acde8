"""Why it was slow: decompose, attribute, compare.  Everything here speaks in Findings."""
