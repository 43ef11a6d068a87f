"""The HTTP API: every route with its parameters, its body and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docs_reference.text import table
from rl_insight.server.app import openapi_document
from rl_insight.server.http.pages import content_text, type_text

_INTRODUCTION = """# HTTP API

Every route of the server's main port, from the code of this version; a server shows the same at `/docs`, and for
programs at `/openapi.json`. Beyond loopback each request needs the token:

```sh
curl --header "Authorization: Bearer $RL_INSIGHT_TOKEN" "http://127.0.0.1:18080/api/v1/summary?run=grpo-7b"
```

An answer other than 2xx is JSON with the key `error`: what happened, why, and what to do.
"""
_METHODS = ("get", "post", "put", "patch", "delete")


def page() -> str:
    """Return the page."""
    document = openapi_document()
    parts = [_INTRODUCTION]
    for path, operations in document["paths"].items():
        parts += [_operation(path, name, operations[name]) for name in _METHODS if name in operations]
    parts.append("## Types\n")
    parts += [_type(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    return "\n".join(parts)


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    parts = [f"## {method.upper()} {path}\n", operation.get("description") or operation.get("summary") or "", ""]
    rows = [
        (f"`{one['name']}`", type_text(one["schema"], _link), "yes" if one.get("required") else "", _meaning(one))
        for one in operation.get("parameters", ())
    ]
    parts.append(table(("parameter", "type", "required", "meaning"), rows))
    body = content_text(operation.get("requestBody", {}), _link)
    if body:
        parts.append(f"Body: {body}.\n")
    answer = content_text(operation.get("responses", {}).get("200", {}), _link)
    if answer:
        parts.append(f"Answer: {answer}.\n")
    return "\n".join(parts)


def _meaning(parameter: Mapping[str, Any]) -> str:
    text: str = parameter.get("description", "")
    default = parameter["schema"].get("default")
    return text if default is None else f"{text} Default: `{default}`.".strip()


def _type(name: str, schema: Mapping[str, Any]) -> str:
    needed = set(schema.get("required", ()))
    rows = [
        (f"`{field}`", type_text(own, _link), "yes" if field in needed else "", own.get("description", ""))
        for field, own in schema.get("properties", {}).items()
    ]
    return f"### {name}\n\n{schema.get('description', '')}\n\n{table(('field', 'type', 'always', 'meaning'), rows)}"


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"
