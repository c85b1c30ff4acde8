"""What LiteLLM's words mean here: providers, strategies, and settings that have nothing like them.

Deliberately absent: reading the file (`app.importing.litellm`).
"""

PROVIDERS = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "text-completion-openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "azure": ("", "AZURE_API_KEY"),
    "azure_ai": ("", "AZURE_AI_API_KEY"),
    "hosted_vllm": ("", ""),
    "vllm": ("", ""),
    "custom_openai": ("", ""),
    "litellm_proxy": ("", ""),
    "lm_studio": ("", ""),
    "llamafile": ("http://127.0.0.1:8080/v1", ""),
    "ollama": ("http://localhost:11434", ""),
    "ollama_chat": ("http://localhost:11434", ""),
    "groq": ("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": ("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "deepseek": ("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "together_ai": ("https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "fireworks_ai": ("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "xai": ("https://api.x.ai/v1", "XAI_API_KEY"),
    "anthropic": ("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
}
"""Provider -> its address, and the variable LiteLLM reads its key from when the file names none."""

STRATEGIES = {
    "least-busy": "",
    "simple-shuffle": "replicas with the fewest tokens in flight come first, not random ones",
    "usage-based-routing": "by tokens in flight now, not by tokens of the last minute",
    "usage-based-routing-v2": "by tokens in flight now, not by tokens of the last minute",
    "latency-based-routing": "by tokens in flight now, not by the latency of past requests",
    "cost-based-routing": "there are no prices here",
}
"""Routing strategy -> what is different about `least_tokens`, which is the default here."""

BUILT_IN = {
    "num_retries": "one retry on another engine, within a budget, and never after the first byte",
    "max_retries": "one retry on another engine, within a budget, and never after the first byte",
    "retry_after": "a retry goes to another engine at once",
    "allowed_fails": "an engine is closed after five failures in a row of its connection",
    "cooldown_time": "a closed engine is probed after a second",
    "disable_cooldowns": "an engine is closed after five failures in a row of its connection",
    "stream_timeout": "the silence before and within an answer is bounded by gateway.first_byte_timeout",
    "enable_pre_call_checks": "an engine that cannot take a request is not asked",
    "max_parallel_requests": "bounded for the whole gateway, by policy.admit.max_inflight",
}
"""Settings whose job is done here by something that is always there."""

LOST = {
    "callbacks": "nothing is called; every request is a row of the store",
    "success_callback": "nothing is called; every request is a row of the store",
    "failure_callback": "nothing is called; every request is a row of the store",
    "service_callback": "nothing is called; every request is a row of the store",
    "database_url": "there is no database",
    "store_model_in_db": "there is no database",
    "context_window_fallbacks": "a request that is too long for its model is refused",
    "content_policy_fallbacks": "answers are not looked at",
    "default_fallbacks": "a fallback is named for each model",
    "redis_host": "only shared quotas need a Redis: see 'ledger'",
    "redis_port": "only shared quotas need a Redis: see 'ledger'",
    "redis_password": "only shared quotas need a Redis: see 'ledger'",
    "redis_url": "only shared quotas need a Redis: see 'ledger'",
    "cache_params": "the cache is in each worker's memory",
    "max_budget": "there are no prices; tokens are limited by 'quotas'",
    "budget_duration": "there are no prices; tokens are limited by 'quotas'",
    "input_cost_per_token": "there are no prices",
    "output_cost_per_token": "there are no prices",
    "input_cost_per_second": "there are no prices",
    "temperature": "requests go out as they came in; nothing is added",
    "max_tokens": "requests go out as they came in; nothing is added",
    "extra_headers": "requests go out as they came in; nothing is added",
    "extra_body": "requests go out as they came in; nothing is added",
    "organization": "requests go out as they came in; nothing is added",
    "drop_params": "requests go out as they came in, and an engine may refuse a parameter",
    "base_model": "there are no prices",
    "order": "engines of one model are equals",
}
"""Well-known settings that have nothing like them here, and why."""

NOTHING = {"set_verbose", "json_logs", "telemetry"}
