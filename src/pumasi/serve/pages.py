"""The pages, as text. Everything that comes from outside goes through `escape`; scripts and styles are files."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from html import escape
from textwrap import shorten
from typing import Any

from pumasi.serve import png
from pumasi.serve.answers import Answer, Verdict
from pumasi.serve.ensemble import Ensemble
from pumasi.serve.http import Refusal
from pumasi.serve.limits import Limits
from pumasi.serve.openapi import PATHS, sample_answer, sample_input
from pumasi.serve.preprocessing import Array, Image, Text
from pumasi.serve.texts import LANGUAGES, TEXTS

_MOST_BARS = 5
_MOST_SHOWN = 80
_DIGITS = 6


def home(
    ensemble: Ensemble,
    language: str,
    typed: str = "",
    *,
    verdict: Verdict | None = None,
    refusal: Refusal | None = None,
    seen: Any = None,
) -> str:
    """`typed` was given, `seen` are the pixels that it was about, and `verdict` or `refusal` is what came of it."""
    texts = TEXTS[language]
    first, *others = ensemble.names
    names = texts["and_more"].format(name=first, count=len(others)) if others else first
    note = f'<p class="note">{texts["lacks_words"]}</p>' if ensemble.lacks_words else ""
    result = _result(language, verdict, refusal, seen)
    body = f"""<h1>{escape(names)}</h1>
{note}
<form id="form" method="post" action="predict#result" enctype="multipart/form-data">
{_input(ensemble, language, typed, focus="" if result else " autofocus")}
<div class="row"><button class="main">{texts["predict"]}</button>{_clear(ensemble, language)}</div>
{_examples(ensemble, language)}
</form>
<section id="result" aria-live="polite" data-waiting="{texts["waiting"]}"
data-offline="{texts["offline"]}">{result}</section>"""
    return _page(names, language, body, links=(("docs", texts["api"]),))


def _input(ensemble: Ensemble, language: str, typed: str, focus: str) -> str:
    texts, preprocessing = TEXTS[language], ensemble.preprocessing
    if isinstance(preprocessing, Text):
        hint = texts["text_placeholder"]
        return f"""<label for="text">{texts["text"]}</label>
<textarea id="text" name="text" rows="6" placeholder="{hint}"{focus}>{_inside(typed)}</textarea>"""
    if isinstance(preprocessing, Image):
        height, width = preprocessing.size[:2]
        return f"""<div id="drawing" hidden>
<div class="label" id="draw">{texts["draw"]}</div>
<canvas id="canvas" role="img" aria-labelledby="draw" width="{width}" height="{height}"
data-background="{preprocessing.background}"></canvas>
</div>
<label for="file" data-drawing="{texts["upload"]}">{texts["upload_only"]}</label>
<input id="file" name="file" type="file" accept="image/png">"""
    assert isinstance(preprocessing, Array)
    size = preprocessing.size
    shape = texts["any_shape"] if size is None else texts["shape"].format(shape=" × ".join(_length(n) for n in size))
    ids = "" if preprocessing.ids is None else " " + texts["ids"].format(last=preprocessing.ids - 1)
    return f"""<label for="json">{texts["numbers"]}</label>
<textarea id="json" name="json" rows="6" spellcheck="false"{focus}>{_inside(typed)}</textarea>
<p class="hint">{shape}{ids}</p>"""


def _clear(ensemble: Ensemble, language: str) -> str:
    is_drawn = isinstance(ensemble.preprocessing, Image)
    return f'<button type="button" id="clear" hidden>{TEXTS[language]["clear"]}</button>' if is_drawn else ""


def _inside(typed: str) -> str:
    """A browser leaves out the first line break in a text area."""
    return "\n" + escape(typed)


def _length(length: int | None) -> str:
    return "n" if length is None else str(length)


def _examples(ensemble: Ensemble, language: str) -> str:
    texts, preprocessing = TEXTS[language], ensemble.preprocessing
    if not preprocessing.examples:
        return ""
    buttons = []
    for place, example in enumerate(preprocessing.examples):
        said = texts["example"].format(number=place + 1)
        if isinstance(preprocessing, Image):
            shown = f'<img src="{_picture(preprocessing.pixels(example))}" alt="{escape(said)}">'
        else:
            shown = escape(shorten(example, _MOST_SHOWN, placeholder=" …") if isinstance(example, str) else said)
        buttons.append(f'<button name="example" value="{place}" formnovalidate>{shown}</button>')
    return f'<div class="examples"><span>{texts["examples"]}</span>{"".join(buttons)}</div>'


def _picture(pixels: Any) -> str:
    return "data:image/png;base64," + base64.b64encode(png.encode(pixels)).decode()


def _result(language: str, verdict: Verdict | None, refusal: Refusal | None, seen: Any) -> str:
    texts = TEXTS[language]
    parts = []
    if refusal is not None:
        parts.append(f'<p class="refusal" role="alert">{escape(_sentence(refusal, language))}</p>')
    if verdict is not None:
        parts.append(f"<h2>{texts['answer']}</h2>{_answer(verdict.mean, language)}")
    if seen is not None:
        parts.append(f'<figure><img src="{_picture(seen)}" alt=""><figcaption>{texts["seen"]}</figcaption></figure>')
    if verdict is not None and len(verdict.votes) > 1:
        parts.append(_votes(verdict, language))
    return "\n".join(parts)


def _answer(answer: Answer, language: str) -> str:
    if not answer.probabilities:
        return f'<pre class="output">{escape(_numbers(answer.output))}</pre>'
    ordered = sorted(answer.probabilities, key=lambda pair: -pair[1])
    bars = "".join(
        f'<div class="bar"><dt>{escape(label)}</dt><dd><progress max="1" value="{value:.4f}"></progress>'
        f"<span>{100 * value:.2f} %</span></dd></div>"
        for label, value in ordered[:_MOST_BARS]
    )
    rest = len(ordered) - _MOST_BARS
    more = f'<p class="hint">{TEXTS[language]["more"].format(count=rest)}</p>' if rest > 0 else ""
    return f'<p class="answer">{escape(answer.shown)}</p><dl>{bars}</dl>{more}'


def _votes(verdict: Verdict, language: str) -> str:
    texts = TEXTS[language]
    rows = [(name, answer) for name, answer in verdict.votes]
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(_short(each))}</td></tr>" for name, each in rows)
    mean = f'<tr><th scope="row">{texts["mean"]}</th><td>{escape(_short(verdict.mean))}</td></tr>'
    return f"""<h2>{texts["votes"]}</h2>
<table><thead><tr><th scope="col">{texts["model"]}</th><th scope="col">{texts["vote"]}</th></tr></thead>
<tbody>{cells}</tbody><tfoot>{mean}</tfoot></table>"""


def _short(answer: Answer) -> str:
    if answer.probabilities:
        return answer.shown
    return shorten(_numbers(answer.output), _MOST_SHOWN, placeholder=" …")


def _numbers(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_numbers, value))}]"
    return f"{value:.{_DIGITS}g}"


def _sentence(refusal: Refusal, language: str) -> str:
    own = f"{refusal.message} {refusal.hint}".strip()
    translated = TEXTS[language].get(f"error_{refusal.code}")
    if translated is None:
        return own
    return f"{translated} ({own})" if refusal.code in ("bad_input", "model_failed") else translated


def refusal(refusal: Refusal, language: str, path: str) -> str:
    """`path` is where the browser thinks it is: the way back to the root depends on it."""
    root = "../" * (path.count("/") - 1) or "./"
    texts = TEXTS[language]
    title = texts.get(f"title_{refusal.code}") or texts.get(f"title_{refusal.status}") or texts["title_refusal"]
    body = f'<h1>{title}</h1><p>{escape(_sentence(refusal, language))}</p><p class="hint">{refusal.status}</p>'
    return _page(title, language, body, links=((root, texts["home"]),), root=root)


def welcome(language: str) -> str:
    texts = TEXTS[language]
    return _page("Pumasi", language, f'<h1>{texts["welcome"]}</h1><p><a href="./">{texts["go_on"]}</a></p>')


def docs(ensemble: Ensemble, language: str, limits: Limits, host: str, *, needs_token: bool) -> str:
    """`host` is what the browser calls this server."""
    texts, preprocessing = TEXTS[language], ensemble.preprocessing
    token = "  -H 'Authorization: Bearer TOKEN' \\\n" if needs_token else ""
    given = json.dumps({"input": sample_input(preprocessing)}, ensure_ascii=False)
    address = f'<span class="address">http://{escape(host)}/</span>'
    curl = f"""curl -s {address}predict \\
{token}  -H 'Content-Type: application/json' \\
  -d {escape(_quoted(given))}"""
    upload = f"""<p>{texts["docs_png"]}</p><pre>curl -s {address}predict \\
{token}  -H 'Content-Type: image/png' --data-binary @picture.png</pre>"""
    answer = json.dumps(sample_answer(ensemble), ensure_ascii=False, indent=2)
    error = {"error": {"code": "bad_json", "message": "The body is no JSON: …", "hint": 'Send {"input": …}.'}}
    paths = "".join(
        f"<tr><td><code>{method} {path}</code></td><td>{texts[name]}</td></tr>" for path, method, name in PATHS
    )
    body = f"""<h1>{texts["docs_title"]}</h1>
<p>{texts["docs_predict"].format(inputs=limits.inputs)}{" " + texts["docs_token"] if needs_token else ""}</p>
<h2>{texts["docs_request"]}</h2>
<pre>{curl}</pre>
{upload if isinstance(preprocessing, Image) else ""}
<h2>{texts["docs_answer"]}</h2>
<pre>{escape(answer)}</pre>
<h2>{texts["docs_error"]}</h2>
<p>{texts["docs_errors"]} {texts["docs_busy"]}</p>
<pre>{escape(json.dumps(error, ensure_ascii=False, indent=2))}</pre>
<h2>{texts["docs_paths"]}</h2>
<table><thead><tr><th scope="col">{texts["path"]}</th><th scope="col">{texts["what"]}</th></tr></thead>
<tbody>{paths}</tbody></table>"""
    return _page(texts["docs_title"], language, body, links=(("./", texts["home"]), ("openapi.json", "openapi.json")))


def _quoted(text: str) -> str:
    """For a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _page(title: str, language: str, body: str, links: Iterable[tuple[str, str]] = (), root: str = "./") -> str:
    texts = TEXTS[language]
    here = "".join(f'<a href="{target}">{escape(said)}</a>' for target, said in links)
    others = "".join(
        f'<a href="?lang={code}" lang="{code}" hreflang="{code}">{name}</a>'
        for code, name in LANGUAGES.items()
        if code != language
    )
    return f"""<!DOCTYPE html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="{root}static/icon.svg">
<link rel="stylesheet" href="{root}static/style.css">
<script src="{root}static/app.js" defer></script>
</head>
<body>
<header><a class="brand" href="{root}">품앗이</a><nav>{here}{others}</nav></header>
<main>
{body}
</main>
<footer>{texts["served_by"]}</footer>
</body>
</html>
"""
