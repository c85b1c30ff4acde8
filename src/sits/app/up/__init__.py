"""`sitsctl up`: a lean supervisor, the workers that serve, and the keeper that remembers.

```
supervisor  reads and re-reads the file, holds the port, forks and restarts the others; no loop, no libraries
├─ worker 0..N-1   requests in, answers out; rows, vitals and questions go to the keeper
└─ keeper   store, watching engines, metrics page, ledger; the only one with numpy and duckdb
```
Each part may die and is started again; what it shared with others is in memory the supervisor made before it forked.
"""
