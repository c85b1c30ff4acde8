"""What an engine says of itself: KV blocks, block size, scheduler limits, read from texts it prints, each with its source.

Capacity is a fact of the engine, not of a formula: 0.9 of a GPU's memory less the weights gave 31 % more KV blocks than a
real engine had, and a run 12.5 % shorter than it was.  So a figure comes from, in this order,

    metrics   the labels of `vllm:cache_config_info` (what is running now)
    log       vLLM's start-up lines: the arguments that were given, the engine's configuration, the KV cache it got
    config    a mapping of engine arguments or a saved description of the engine, nested or not, `_` or `-` in its names

and two sources that disagree are an error: one of them is of another engine.  A figure that decides capacity and
is in none of them is refused, by name and with the way to get it.  What merely has a well-known default may be assumed, and is then in `assumed`, to be printed.

`blocks` are usable ones: one of vLLM's `num_gpu_blocks` is never given out.

>>> facts = read_facts(metrics='vllm:cache_config_info{block_size="16",num_gpu_blocks="2588"} 1.0',
...     config={"max-num-seqs": 256})
>>> facts.need("blocks"), facts.need("max_num_seqs")
(2587, 256)
>>> facts.need("max_num_batched_tokens")
Traceback (most recent call last):
...
sits.core.errors.ConfigError: max_num_batched_tokens: the engine does not say max_num_batched_tokens (give its start-up log, or --max-num-batched-tokens)

Deliberately absent: reading files and pages (texts come in), other engines than vLLM, and any estimate from memory sizes.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sits.core.errors import ConfigError

REQUIRED = ("blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")
"""Without these there is no capacity to speak of."""

WAY_OUT = {
    "blocks": "give its metrics page or its start-up log (`GPU KV cache size`), or --blocks",
    "block_size": "give its metrics page, or --block-size",
    "max_num_seqs": "give its start-up log, or --max-num-seqs",
    "max_num_batched_tokens": "give its start-up log, or --max-num-batched-tokens",
}

DEFAULTS: dict[str, tuple[Any, str]] = {
    "prefix_caching": (True, "vLLM V1 caches prefixes unless it is told not to"),
    "chunked_prefill": (True, "vLLM V1 cuts prompts unless it is told not to"),
    "long_prefill_token_threshold": (0, "vLLM's default: no limit but the step's tokens"),
    "order": ("fcfs", "vLLM's default"),
    "reserve_full_isl": (True, "vLLM admits a prompt only when all of it fits, since early 2026"),
}

_NAMES = {
    "num_gpu_blocks": "num_gpu_blocks",
    "block_size": "block_size",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "enable_prefix_caching": "prefix_caching",
    "enable_chunked_prefill": "chunked_prefill",
    "async_scheduling": "async_scheduling",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "scheduling_policy": "order",
    "scheduler_reserve_full_isl": "reserve_full_isl",
    "num_kv_tokens": "kv_tokens",
    "vllm_version": "version",
}
"""Names of engine arguments and saved descriptions, and what they are called here."""

_ASYNC_SINCE = (0, 14)
_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\}\s+\S+\s*$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ARGUMENT = re.compile(r"['\"](\w+)['\"]: (?:'([^']*)'|\"([^\"]*)\"|([\w.+-]+))")
_SETTING = re.compile(r"\b(enable_prefix_caching|enable_chunked_prefill|async_scheduling)=(True|False)\b")
_LINES = (
    ("version", re.compile(r"Initializing a V1 LLM engine \(v([\w.+]+)\)")),
    ("kv_tokens", re.compile(r"KV cache size: ([\d,]+) tokens")),
    ("num_gpu_blocks", re.compile(r"# GPU blocks: (\d+)")),
    ("num_gpu_blocks", re.compile(r"with num_gpu_blocks_override=(\d+)")),
    ("max_num_batched_tokens", re.compile(r"max_num_batched_tokens=(\d+)")),
    ("async_scheduling", re.compile(r"Asynchronous scheduling is (enabled|disabled)")),
)


class Fact(msgspec.Struct, frozen=True):
    """A figure and where it comes from."""

    value: Any
    source: str


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an engine; None = not said.  `assumed` are sentences about what was filled in."""

    blocks: Fact | None = None
    block_size: Fact | None = None
    max_num_seqs: Fact | None = None
    max_num_batched_tokens: Fact | None = None
    prefix_caching: Fact | None = None
    chunked_prefill: Fact | None = None
    async_scheduling: Fact | None = None
    long_prefill_token_threshold: Fact | None = None
    order: Fact | None = None
    reserve_full_isl: Fact | None = None
    version: Fact | None = None
    assumed: tuple[str, ...] = ()

    def need(self, name: str) -> Any:
        """The value of `name`.

        Raises:
            ConfigError: the engine does not say it.

        """
        fact: Fact | None = getattr(self, name)
        if fact is None:
            hint = WAY_OUT.get(name, f"give its start-up log, or --{name.replace('_', '-')}")
            raise ConfigError(f"the engine does not say {name}", field=name, value=None, hint=hint)
        return fact.value

    def arguments(self) -> dict[str, Any]:
        """The arguments of `sits.sim.forecast.engine`, all but the step time.

        Raises:
            ConfigError: a figure that decides capacity is not known.

        """
        names = (*REQUIRED, *DEFAULTS, "async_scheduling")
        return {name: self.need(name) for name in names}

    def lines(self) -> list[str]:
        """One line a figure, with its source; assumptions last."""
        named = [(name, getattr(self, name)) for name in self.__struct_fields__ if name != "assumed"]
        said = [f"{name} {fact.value} (from {fact.source})" for name, fact in named if fact is not None]
        return said + [f"assumed: {what}" for what in self.assumed]


def read_facts(
    log: str | None = None,
    metrics: str | None = None,
    config: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> EngineFacts:
    """Read what the texts say; `given` are figures a person gave, which come before all and may contradict.

    Raises:
        ConfigError: two sources disagree, or a figure is not a number.

    """
    found: dict[str, Fact] = {}
    for source, pairs in (
        ("metrics: vllm:cache_config_info", _from_metrics(metrics or "")),
        ("log", _from_log(log or "")),
        ("config", _from_config(config or {})),
    ):
        for name, value, where in pairs:
            _add(found, name, _value(name, value), f"{source}{where}")
    hand = {name: Fact(value, "given") for name, value in (given or {}).items() if value is not None}
    found |= hand
    _count_blocks(found)
    found |= hand
    assumed = _assume(found)
    known = set(EngineFacts.__struct_fields__)
    return EngineFacts(
        **{name: fact for name, fact in found.items() if name in known}, assumed=tuple(assumed)
    )


def _from_metrics(text: str) -> Iterator[tuple[str, str, str]]:
    for match in _INFO.finditer(text):
        for label, value in _LABEL.findall(match[1]):
            if label in _NAMES and value not in {"None", ""}:
                yield _NAMES[label], value, f", label {label}"
        return


def _from_log(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.splitlines():
        if "non-default args:" in line:
            for name, *values in _ARGUMENT.findall(line.partition("non-default args:")[2]):
                value = next((v for v in values if v), "")
                if name in _NAMES and value not in {"None", ""}:
                    yield _NAMES[name], value, ", non-default args"
        if "LLM engine" in line:
            for name, value in _SETTING.findall(line):
                yield _NAMES[name], value, ", engine configuration"
        for name, pattern in _LINES:
            if (match := pattern.search(line)) is not None:
                yield name, match[1], f', "{match[0]}"'


def _from_config(config: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    for key, value in config.items():
        name = str(key).replace("-", "_")
        if isinstance(value, Mapping):
            yield from _from_config(value)
        elif name in _NAMES and value is not None:
            yield _NAMES[name], value, f", {key}"


def _value(name: str, value: Any) -> Any:
    if name in {"version", "order"}:
        return str(value)
    if name in {"prefix_caching", "chunked_prefill", "async_scheduling", "reserve_full_isl"}:
        return str(value).lower() in {"true", "enabled", "1"}
    try:
        return int(str(value).replace(",", ""))
    except ValueError:
        raise ConfigError(
            f"{name} is {value!r}, not a whole number",
            field=name,
            value=value,
            hint="look at where it comes from",
        ) from None


def _add(found: dict[str, Fact], name: str, value: Any, source: str) -> None:
    known = found.setdefault(name, Fact(value, source))
    if known.value != value and name != "version":
        raise ConfigError(
            f"{known.source} says {name} {known.value}, {source} says {value}",
            field=name,
            value=value,
            hint="one of the two is of another engine, or of another start of it",
        )


def _count_blocks(found: dict[str, Fact]) -> None:
    """Usable blocks from the number of blocks, or from the tokens they hold."""
    size, count, tokens = (found.get(name) for name in ("block_size", "num_gpu_blocks", "kv_tokens"))
    if count is not None:
        found["blocks"] = Fact(count.value - 1, f"{count.source}; one block less, which is never given out")
    elif tokens is not None and size is not None:
        blocks = tokens.value // size.value
        how = f"{tokens.source}, {tokens.value} tokens of {size.value} a block"
        found["blocks"] = Fact(blocks - 1, f"{how}; one block less, which is never given out")


def _assume(found: dict[str, Fact]) -> list[str]:
    assumed = []
    for name, (value, why) in DEFAULTS.items():
        if name not in found:
            found[name] = Fact(value, f"assumption: {why}")
            assumed.append(f"{name} = {value}: {why}")
    if "async_scheduling" not in found:
        version = found["version"].value if "version" in found else ""
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        value = not version or numbers >= _ASYNC_SINCE
        why = f"the default of vLLM {version}"
        if not version:
            why = "the default of vLLM since {}.{}; its version is not known".format(*_ASYNC_SINCE)
        found["async_scheduling"] = Fact(value, f"assumption: {why}")
        assumed.append(f"async_scheduling = {value}: {why}")
    return assumed
