r"""A small service in front of the gateway: retrieve, rerank, answer, with a span for each, in one trace with the gateway's own time.

    (cat examples/emulated.yaml; echo 'admin: {listen: "127.0.0.1:8081"}') > fleet.yaml
    sitsctl up fleet.yaml &
    GATEWAY=http://127.0.0.1:8080 OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:8081 \
        uvicorn --app-dir examples rag_service:app --port 8000 &
    curl -i 'http://127.0.0.1:8000/ask?q=why+is+the+sky+blue'

The answer's `x-trace-id` is what `sitsctl trace` takes.  Here spans go to the gateway's own admin port; they go wherever the variable says, over
HTTP.  Without it nothing is sent, and the gateway's request still is part of the caller's trace.
"""

# ruff: noqa: INP001, S310 - a file by itself, which opens the address it is given

import asyncio
import json
import os
import urllib.request
from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import sits

GATEWAY = os.environ.get("GATEWAY", "http://127.0.0.1:8080")
MODEL = os.environ.get("MODEL", "llama-3-8b")
SHELF = (
    "Air scatters short waves of light more than long ones.",
    "The sea is blue because water absorbs red light.",
    "Cheese is made of milk.",
)


@sits.span("retrieve", kind="client", **{"db.system.name": "shelf"})
async def retrieve(question: str) -> list[str]:
    """All documents that share a word with the question."""
    words = set(question.lower().split())
    return [text for text in SHELF if words & set(text.lower().split())] or list(SHELF)


@sits.span("rerank")
def rerank(question: str, documents: list[str]) -> list[str]:
    """The two best."""
    words = set(question.lower().split())
    return sorted(documents, key=lambda text: -len(words & set(text.lower().split())))[:2]


async def answer(question: str, documents: list[str]) -> str:
    """What the model says, through the gateway; its engine failures are ours too."""
    with sits.span("answer", kind="client", **{"gen_ai.request.model": MODEL}) as span:
        prompt = "\n".join([*documents, question])
        body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 16}
        headers = sits.inject({"content-type": "application/json"})
        request = urllib.request.Request(f"{GATEWAY}/v1/chat/completions", json.dumps(body).encode(), headers)
        told = await asyncio.to_thread(_post, request)
        span.set(**{"gen_ai.usage.output_tokens": told["usage"]["completion_tokens"]})
        return str(told["choices"][0]["message"]["content"])


def _post(request: urllib.request.Request) -> dict[str, Any]:
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


async def ask(request: Request) -> JSONResponse:
    """`GET /ask?q=...`"""
    question = request.query_params.get("q", "")
    here = sits.current()
    headers = {"x-trace-id": here.trace_id} if here else {}
    try:
        documents = rerank(question, await retrieve(question))
        return JSONResponse(
            {"answer": await answer(question, documents), "sources": documents}, headers=headers
        )
    except OSError as error:
        return JSONResponse({"error": str(error)}, status_code=503, headers=headers)


def about(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Business attributes: who asks, and what tier they pay for."""
    headers = dict(scope["headers"])
    return {"tenant": headers.get(b"x-tenant", b"nobody").decode("latin-1")}


sits.configure("rag", attributes={"deployment.environment.name": "demo"})
app = sits.SpanMiddleware(Starlette(routes=[Route("/ask", ask)]), attributes=about)
