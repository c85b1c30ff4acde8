"""Rows to tables: medians with their range, bars with PASS or MISS."""

import statistics


def _values(rows, *keys):
    found = []
    for row in rows:
        value = row
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found.append(value)
    return found


def spread(values, form="{:.1f}"):
    """`median [least-most]`, or a dash."""
    if not values:
        return "-"
    middle = form.format(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} [{form.format(min(values))}-{form.format(max(values))}]"


QUICK_LINES = (
    ("CPU us / request, saturated", ("sat", "cpu_us_per_request"), "{:.1f}"),
    ("  of it in the parent process", ("sat", "parent_us"), "{:.1f}"),
    ("  requests/s seen", ("sat", "per_s"), "{:,.0f}"),
    ("  errors", ("sat", "errors"), "{:.0f}"),
    ("CPU us / chunk, one by one", ("credit", "cpu_us_per_chunk"), "{:.2f}"),
    ("  of it in the parent process", ("credit", "parent_us"), "{:.2f}"),
    ("  errors", ("credit", "errors"), "{:.0f}"),
    ("CPU us / chunk, engine floods", ("flood", "cpu_us_per_chunk"), "{:.2f}"),
    ("  errors", ("flood", "errors"), "{:.0f}"),
    ("added P50 at 200 req/s, us", ("rate", "added_p50_us"), "{:.0f}"),
    ("added P99 at 200 req/s, us", ("rate", "added_p99_us"), "{:.0f}"),
    ("CPU us / request at 200 req/s", ("rate", "cpu_us_per_request"), "{:.0f}"),
    ("added TTFT P50 at 50 streams/s, us", ("ttft", "added_p50_us"), "{:.0f}"),
    ("added TTFT P99 at 50 streams/s, us", ("ttft", "added_p99_us"), "{:.0f}"),
    ("cancel before first byte, P50 us", ("cancel", "plain", "delay_us", "p50"), "{:.0f}"),
    ("cancel before first token, P50 us", ("cancel", "token", "delay_us", "p50"), "{:.0f}"),
    ("cancel in mid-stream, P50 us", ("cancel", "middle", "delay_us", "p50"), "{:.0f}"),
    ("many streams: CPU us / chunk", ("many", "cpu_us_per_chunk"), "{:.1f}"),
    ("  open at once", ("many", "open_at_once"), "{:.0f}"),
    ("  errors + unfinished", ("many", "errors"), "{:.0f}"),
    ("20 MB body: CPU us / MB", ("large", "20000000", "us_per_mb"), "{:.0f}"),
    ("100k-token prompt: CPU us", ("large", "400000", "cpu_us"), "{:.0f}"),
    ("hostile: RSS drift", ("hostile", "drift"), "{:.1%}"),
    ("  good requests that failed", ("hostile", "good_failed"), "{:.0f}"),
    ("start to first OK, s", ("start_s",), "{:.2f}"),
    ("RSS idle, MB", ("rss_idle_mb",), "{:.1f}"),
    ("RSS loaded, MB", ("rss_loaded_mb",), "{:.1f}"),
    ("machine: a fixed loop, ms", ("sat", "spin_ns"), "{:.2e}"),
    ("machine: load average", ("loadavg",), "{:.1f}"),
)


def quick_table(rows):
    """One column a gateway, for a terminal."""
    names = list(dict.fromkeys(row["peer"] for row in rows))
    lines = [f"{'':38}" + "".join(f"{name:>24}" for name in names)]
    for label, keys, form in QUICK_LINES:
        cells = [spread(_values([row for row in rows if row["peer"] == name], *keys), form) for name in names]
        if any(cell != "-" for cell in cells):
            lines.append(f"{label:38}" + "".join(f"{cell:>24}" for cell in cells))
    return "\n".join(lines)
