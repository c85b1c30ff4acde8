"""Why it was slow: columns of requests, steps and signals in, findings and figures out.

`decompose` cuts requests into stages, `attribute` says which plane of the system the time belongs to,
`causes` name what did it, `compare` proves a difference between configurations, `spectrum` draws lengths and
time lines.
"""
