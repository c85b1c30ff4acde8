"""The board: pages that show a running fleet, answered from its store."""
