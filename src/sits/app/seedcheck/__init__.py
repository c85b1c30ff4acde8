"""Published claims of the field that do not hold: each with the right value, computed here, and its derivation."""
