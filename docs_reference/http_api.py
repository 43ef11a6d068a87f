"""The HTTP API: every route with its parameters, its body and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from docs_reference.text import table
from rl_insight.server.app import openapi_document

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
        (f"`{one['name']}`", _kind(one["schema"]), "yes" if one.get("required") else "", _meaning(one))
        for one in operation.get("parameters", ())
    ]
    parts.append(table(("parameter", "type", "required", "meaning"), rows))
    body = _content(operation.get("requestBody", {}))
    if body:
        parts.append(f"Body: {body}.\n")
    answer = _content(operation.get("responses", {}).get("200", {}))
    if answer and answer != "any":
        parts.append(f"Answer: {answer}.\n")
    return "\n".join(parts)


def _meaning(parameter: Mapping[str, Any]) -> str:
    text: str = parameter.get("description", "")
    default = parameter["schema"].get("default")
    return text if default is None else f"{text} Default: `{default}`.".strip()


def _content(described: Mapping[str, Any]) -> str:
    content = described.get("content", {})
    kinds = [
        _kind(one.get("schema", {})) if name == "application/json" else f"`{name}`" for name, one in content.items()
    ]
    return ", or ".join(kind for kind in kinds if kind)


def _type(name: str, schema: Mapping[str, Any]) -> str:
    needed = set(schema.get("required", ()))
    rows = [
        (f"`{field}`", _kind(own), "yes" if field in needed else "", own.get("description", ""))
        for field, own in schema.get("properties", {}).items()
    ]
    return f"### {name}\n\n{schema.get('description', '')}\n\n{table(('field', 'type', 'always', 'meaning'), rows)}"


def _kind(schema: Mapping[str, Any]) -> str:
    """Return a type in words; one with a name links to it."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        kinds = list(dict.fromkeys(map(_kind, _options(schema))))
        return " or ".join(kinds)
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _options(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from (one for one in schema["anyOf"] if one.get("type") != "null")
    yield from (one for one in schema["anyOf"] if one.get("type") == "null")
