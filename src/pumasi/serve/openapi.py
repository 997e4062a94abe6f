"""The API, as programs read it (OpenAPI 3.1), and samples of what goes in and comes out."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumasi.serve.answers import Answer, Verdict
from pumasi.serve.ensemble import Ensemble
from pumasi.serve.limits import Limits
from pumasi.serve.preprocessing import Image, Preprocessing, Text

PATHS = (
    ("/", "GET", "path_home"),
    ("/predict", "POST", "path_predict"),
    ("/healthz", "GET", "path_healthz"),
    ("/readyz", "GET", "path_readyz"),
    ("/metrics", "GET", "path_metrics"),
    ("/openapi.json", "GET", "path_openapi"),
)
_MOST_NUMBERS = 12
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "hint"],
            "properties": {name: {"type": "string"} for name in ("code", "message", "hint")},
        }
    },
}
_REFUSALS = {
    "400": "no JSON",
    "401": "no token, or a wrong one",
    "413": "too large",
    "415": "another type of content",
    "422": "no input of this model",
    "429": "too many requests; Retry-After says when to come back",
    "500": "the model failed",
    "503": "loading, ending, or too many wait",
    "504": "the model took too long",
}


def sample_input(preprocessing: Preprocessing) -> Any:
    if preprocessing.examples and isinstance(preprocessing, Text):
        return preprocessing.examples[0]
    if isinstance(preprocessing, Text):
        return "a text"
    if isinstance(preprocessing, Image):
        return "data:image/png;base64,…"
    shape = preprocessing.shape
    if shape is None or np.prod(shape) > _MOST_NUMBERS:
        return [0, 1, "…"]
    return np.zeros(shape, int).tolist()


def sample_answer(ensemble: Ensemble) -> Any:
    labels = ensemble.preprocessing.labels
    if labels:
        shares = [0.0659, *[0.0] * (len(labels) - 2), 0.9341]
        answer = Answer(labels[-1], tuple(zip(labels, shares, strict=True)))
    else:
        answer = Answer(output=[0.5])
    return {"predictions": [Verdict(answer, tuple((name, answer) for name in ensemble.names[:1])).as_json()]}


def described(ensemble: Ensemble, limits: Limits, *, needs_token: bool) -> dict[str, Any]:
    preprocessing = ensemble.preprocessing
    one = _input_schema(preprocessing)
    content: dict[str, Any] = {
        "application/json": {
            "schema": {
                "oneOf": [
                    {"type": "object", "required": ["input"], "properties": {"input": one}},
                    {
                        "type": "object",
                        "required": ["inputs"],
                        "properties": {
                            "inputs": {"type": "array", "items": one, "minItems": 1, "maxItems": limits.inputs}
                        },
                    },
                ]
            },
            "example": {"input": sample_input(preprocessing)},
        }
    }
    if isinstance(preprocessing, Image):
        content["image/png"] = {"schema": {"type": "string", "format": "binary"}}
    answer = _answer_schema(preprocessing)
    vote = {**answer, "required": ["model", *answer["required"]]}
    vote["properties"] = {"model": {"type": "string"}, **answer["properties"]}
    prediction = {**answer, "required": [*answer["required"], "votes"]}
    prediction["properties"] = {**answer["properties"], "votes": {"type": "array", "items": vote}}
    predictions = {
        "type": "object",
        "required": ["predictions"],
        "properties": {"predictions": {"type": "array", "items": prediction}},
    }
    responses: dict[str, Any] = {
        "200": {
            "description": "a prediction for each input, in the same order",
            "content": {"application/json": {"schema": predictions, "example": sample_answer(ensemble)}},
        }
    }
    for status, about in _REFUSALS.items():
        if status != "401" or needs_token:
            responses[status] = {"description": about, "content": {"application/json": {"schema": _ERROR}}}
    paths: dict[str, Any] = {
        path: {"get": {"responses": {"200": {"description": "ready"}, "503": {"description": "not ready"}}}}
        for path in ("/healthz", "/readyz")
    }
    paths["/metrics"] = {"get": {"responses": {"200": {"description": "text for Prometheus"}}}}
    paths["/predict"] = {
        "post": {
            "operationId": "predict",
            "requestBody": {"required": True, "content": content},
            "responses": responses,
        }
    }
    said: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": ", ".join(ensemble.names), "version": "1"},
        "servers": [{"url": "./"}],
        "paths": paths,
    }
    if needs_token:
        said["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        said["security"] = [{"token": []}]
    return said


def _input_schema(preprocessing: Preprocessing) -> dict[str, Any]:
    if isinstance(preprocessing, Text):
        return {"type": "string"}
    numbers: dict[str, Any] = {"type": "array", "items": {"type": ["number", "array"]}}
    if isinstance(preprocessing, Image):
        url = {"type": "string", "pattern": "^data:image/png;base64,"}
        return {"oneOf": [url, numbers]}
    return numbers


def _answer_schema(preprocessing: Preprocessing) -> dict[str, Any]:
    if not preprocessing.labels:
        return {"type": "object", "required": ["output"], "properties": {"output": {}}}
    likely = {"type": "number", "minimum": 0, "maximum": 1}
    properties = {
        "label": {"enum": list(preprocessing.labels)},
        "percent": {"type": "number"},
        "probabilities": {"type": "object", "properties": dict.fromkeys(preprocessing.labels, likely)},
    }
    return {"type": "object", "required": list(properties), "properties": properties}
