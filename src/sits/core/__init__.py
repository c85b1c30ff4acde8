"""The words: nouns, ports, breakpoints, units, error tree, strict configuration.  No I/O, no clock, no dice."""
