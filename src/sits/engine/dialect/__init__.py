"""Two dialects, one meaning: OpenAI's Chat Completions and Anthropic's Messages, translated both ways.  No I/O.

`chat` and `messages` are the shapes: what of each dialect has a meaning in the other, as types.  `ask_anthropic` and
`ask_openai` translate requests, `answer_openai` and `answer_anthropic` answers, whole or as streams; `reading`, `ending` and
`usage` are what they share: refusing a field, why an answer ended, what it took.  `messages_reader` follows a stream of
Anthropic's that passes untouched.

Rules: a field that cannot be said in the other dialect is refused by name, with 400, unless it only hints (caching,
priority, tracing) and is listed in the shape's docstring; `null` means unset; text of JSON (schemas, arguments) is
carried over as it is, so no number is rounded; an answer that cannot be translated is the engine's error, never cut.
A request in its engine's own dialect is not looked at here: it passes byte for byte.
"""
