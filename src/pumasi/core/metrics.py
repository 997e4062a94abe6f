"""A line of output to a Reading: what unchanged scripts say about their loss, however they say it.

Nobody tells us the format, so a line is read as a person would: find the numbers, and let the words before each of them
say what it is. A name is one of

    measure    loss, val_accuracy, "Test loss": taken
    shy        error, precision, map: words with other lives, taken when the number has a decimal point
    setting    batch_size, seed, eta, params, memory: never taken from text; settings, clocks and sizes are no measures
    other      lr, alpha: taken in the company of a measure; or, with a decimal point, of an epoch or a step

Names from text are written in lower case with "_" between the words ("Test loss" -> test_loss, "Avg loss" -> avg_loss).
A heading that names held-out data is put in front ("Test set: Average loss: 0.04" -> test_average_loss), so that
validation does not get mixed into the training curve. Names in JSON objects and Python dicts stay as they are, nested
ones joined with "."; an object of nothing but numbers with a step or an epoch, as `pumasi.report` prints it, is taken
whole. A percentage is the fraction that it means (88.1% -> 0.881), and so is "Accuracy: 9848/10000". A line of nothing
but an epoch or a step and a number with a decimal point ("epoch 1: 45.00") has a metric that is called `value`.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import NamedTuple

VERSION = 1
"""Of what a measurement looks like where it crosses a process: in JSON lines, and in the store, whose tables have a
version of their own."""
_LONGEST = 4096
"""Bytes: a longer line of text was not written for people. Objects may be longer: they are parsed, not searched."""
_LONGEST_RECORD = 65536
_DEEPEST_RECORD = 8
_LONGEST_LABEL = 160


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MEASURES = _words(
    """loss losses logloss mlogloss acc accuracy auc auroc auprc f1 fbeta bleu rouge rougel chrf perplexity ppl mse rmse
    mae mape msle mrr ndcg iou miou dice jaccard mcc kappa psnr ssim lpips fid wer cer nll xent crossentropy entropy
    bce kl kld elbo likelihood reward rewards rew score regret recall sensitivity specificity throughput 손실 정확도"""
)
_SHY = _words("error merror err precision ap map map50 r2 em bpb bpc objective cost energy return returns top1 top5")
_SETTINGS = _words(
    """time times ts timestamp eta elapsed duration sec secs second seconds ms minutes hours wall speed data mem memory
    gpu gpus cpu cpus cuda device devices rank ranks world node nodes worker workers host port pid seed id version num
    number count size sizes batchsize params parameters param epochs steps iters iterations batches samples examples
    images tokens layer layers dim hidden heads threads cores threshold weight weights decay momentum dropout smoothing
    coef patience interval every freq delta fn function line code status level bits"""
)
_STEPS = _words("step global_step iteration iter batch episode update round")
_SPLITS = _words(
    "train training test testing val valid validate validation validating eval evaluate evaluation evaluating dev"
)
_HEADINGS = {
    "train": "",
    "training": "",
    "testing": "test",
    "validate": "val",
    "validating": "val",
    "evaluate": "eval",
    "evaluating": "eval",
}
_BREAKS = _words("of on for at after over in is was the a an to by from info debug warning")
"""Small words that end one part of a phrase and start another: "Accuracy of the network on the test images"."""
_AFTER_SPACE = _MEASURES | _SHY | {"lr", "norm"}
"""Last words of a name that need no colon before the number: `| lr 5.00 | loss 8.19 |`."""

_HINTS = frozenset(word.rstrip("0123456789").encode() for word in _AFTER_SPACE | _STEPS | _words("epoch global it {"))
_NAMES = frozenset(word.rstrip("0123456789").encode() for word in _AFTER_SPACE)
_LETTERS = bytes(c if chr(c).isalpha() or c == ord("{") or c > 127 else 32 for c in bytes(range(256)).lower())
"""Leaves the words of a line: one translate and one split are quicker than a regular expression of so many words."""

_STEP_ALONE = re.compile(rb"\W{0,3}(?:step|iteration|iter|batch)\W{0,3}\d+\b(?=\D*$)\W*[a-zA-Z]{3}", re.IGNORECASE)
"""`step 7: reading the next shard`: no number but the step's, and no title either. Some programs print thousands."""
_PLACES = frozenset(word.encode() for word in _STEPS | {"epoch"})
_MARKS = b" \t_:=#-,.([/"
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_NUMBER = (
    r"[-+]?(?:[0-9]{1,20}(?:,[0-9]{3}){0,6}(?:\.[0-9]{0,30})?(?:[eE][-+]?[0-9]{1,4})?|\.[0-9]{1,30}(?:[eE][-+]?[0-9]{1,4})?"
    r"|[nN]a[nN]|NAN|[iI]nf(?:inity)?|INF)"
)
_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:(?:,[0-9]{3})+\.[0-9]+|(?:,[0-9]{3}){2,})")
"""Not 1,234 by itself: half of the world would read it as 1.234."""
# Every repetition is bounded, so that no line can be slow. What follows a number must not make it a part of something
# else: a version, a time, a date, an amount with a unit, a calculation.
_VALUE = re.compile(
    rf"[\s:=\[(|#'\"](?=[-+.0-9nNiI])({_NUMBER})(?:\s{{0,8}}/\s{{0,8}}([0-9]{{1,12}})(?![\w.]))?(\s?%(?!\|))?"
    r"(?![\w/%*]|[.,:-][0-9]|\s(?:[/%*]|\+\s|(?:[um]?s|secs?|seconds|minutes|hours|[KMGT]i?B|bytes|it/s)\b))"
)
_FULL_NUMBER = re.compile(_NUMBER)
_SCALAR = re.compile(
    rf"\b(?:tf\.)?(?:[tT]ensor|[A-Za-z]{{0,6}}[aA]rray|(?:np\.|numpy\.)?float\d\d)\(({_NUMBER})"
    r"(?:,[^()]{0,80}(?:\([^()]{0,40}\)[^()]{0,80})?)?\)"
)
_CUT = re.compile(r"""[,;|:=\[\]{}<>()"│┃\t]|'(?!s )|\s-\s|->|\s{2,}(?!\d)|\s(?:and|with)\s|(?<=\w{5})[.!]\s""")
_ASIDE = re.compile(r"\s\([^()]{0,80}\)")
_TOKEN = re.compile(r"[^\W\d_]+\d*")
_SPLIT_WORD = re.compile(rf"(?<![\w./-])({'|'.join(sorted(_SPLITS))})(?!\.\w|[\w/-])", re.IGNORECASE)
_PLACE = re.compile(
    r" \[(?: {0,8}([0-9]{1,12})(?:/[0-9]{1,12})?(?:, |\] ?\[) {0,8}([0-9]{1,12})(?:/[0-9]{1,12})?\]|([0-9]{1,12})\]\t)"
    r"| [IWEF][0-9]{4} [^\]]{8,120}\] \[([0-9]{1,12})\] "
)
"""Epoch and batch in `[1,  2000] loss: 2.19` and `[0/5][10/1583]`, round in `[7]<tab>train-rmse:0.5`, step in
`I1118 01:00:00.123456 140 logging_writer.py:48] [10] loss=1.23`: known customs."""
_VALUE_ALONE = re.compile(
    r"(?:.{0,160}[-\]:])?\W{0,8}(?:epoch|step|iteration|iter)[\s:#=]{0,4}[0-9]{1,12}(?:/[0-9]{1,12})?\s?[:=]"
    rf"\s{{0,8}}({_NUMBER})(\s?%)?\s{{0,8}}",
    re.IGNORECASE,
)
_ECHO = re.compile(r"(?:Namespace|Config|Args|Arguments|Params|Settings)\(")
"""`Namespace(lr=0.1, reward_scale=0.5, …`: a script that shows its settings."""
_SETTINGS_AHEAD = re.compile(
    r"(?:param(?:eter)?s|config(?:uration)?|args|arguments|settings|options)\W{0,4}$", re.IGNORECASE
)
_PYTHON_WORDS = {"nan": "NaN", "inf": "Infinity", "None": "null", "True": "true", "False": "false"}
_PYTHON_WORD = re.compile(r"\b(?:nan|inf|None|True|False)\b")
_DECODER = json.JSONDecoder(parse_int=float)


class Reading(NamedTuple):
    values: dict[str, float]
    step: int | None = None
    epoch: int | None = None


class _Found(NamedTuple):
    """`title`: the line says nothing but its step (`--- Step 100 ---`), which then holds for what follows."""

    values: dict[str, float]
    step: int | None = None
    epoch: int | None = None
    title: bool = False


_NAMELESS, _MEASURE, _SHY_MEASURE, _SETTING, _OTHER, _EPOCH, _STEP = range(7)


class _Label(NamedTuple):
    """What the text before a number says about it.

    strong:  a colon or the like stands between name and number. One that touches the number, as in cuda:0, does not.
    opener:  the bracket or # before the number, if any.
    waits:   a measure has been named whose value is still to come: "Loss after epoch 3: 0.12", at the 3.
    heading: test, val, … when the text turns to such data, "" when it turns to training, None when to neither.
    firm:    the heading stands apart from the name ("Val: loss"), so it holds for the names that follow too.
    bare:    the name is a measure's and says nothing about the data itself.
    """

    kind: int
    name: str = ""
    strong: bool = False
    opener: str = ""
    waits: bool = False
    heading: str | None = None
    firm: bool = False
    bare: bool = False


def parse_line(text: str) -> Reading | None:
    """The metrics in one line, or None."""
    found = _find(text.encode("utf-8", "replace"))
    return Reading(found.values, found.step, found.epoch) if found and found.values else None


class MetricParser:
    """Reads the lines of many ranks; a reading has the epoch and the step that earlier lines of its rank have set."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[int | None, int | None]] = {}

    def feed(self, rank: int, text: bytes) -> Reading | None:
        found = _find(text)
        return self._place(rank, found) if found else None

    def forget(self, rank: int) -> None:
        self._places.pop(rank, None)

    def _place(self, rank: int, found: _Found) -> Reading | None:
        epoch, step = self._places.get(rank, (None, None))
        if found.epoch is not None and found.epoch != epoch:
            epoch, step = found.epoch, None
        if found.step is not None:
            step = found.step if found.title else None
        self._places[rank] = (epoch, step)
        if not found.values:
            return None
        return Reading(found.values, found.step if step is None else step, epoch)


def _find(line: bytes) -> _Found | None:
    if len(line) > _LONGEST:
        line = _last_frame(line)
        if len(line) > (_LONGEST_RECORD if line.startswith(b"{") else _LONGEST):
            return None
    if 0x1B in line:
        line = _ANSI.sub(b"", line)
    words = line.translate(_LETTERS).split()
    if _HINTS.isdisjoint(words) or (_NAMES.isdisjoint(words) and _is_chat(line, words)):
        return None
    if b"\b" in line or b"\r" in line:
        line = _last_frame(line)
    return _parse(line.decode("utf-8", "replace").rstrip())


def _is_chat(line: bytes, words: list[bytes]) -> bool:
    """Of a line that names no measure: whether its epoch or step, if any, has no number, or the only one. Not a regular
    expression: searching for so many words, most of them in vain, is what a chatty program would pay for."""
    if _STEP_ALONE.match(line):
        return True
    low = line.lower()
    if b"{" in low or b"s/step" in low or b"it" in words:
        return False
    for word in words:
        if word in _PLACES:
            at = low.find(word) + len(word)
            while at >= len(word):
                if low[at : at + 5].lstrip(_MARKS)[:1].isdigit():
                    return False
                at = low.find(word, at) + len(word)
    return True


def _last_frame(line: bytes) -> bytes:
    """What is left to see after carriage returns and backspaces: progress bars write over themselves."""
    line = line.rstrip(b"\b\r\n\t ")
    return line[max(line.rfind(b"\b"), line.rfind(b"\r")) + 1 :]


def _parse(text: str) -> _Found | None:
    if text.endswith("}"):
        before, brace, _ = text.partition("{")
        data = _load(text[len(before) :]) if brace else None
        if data is not None:
            if _SETTINGS_AHEAD.search(before):
                return None
            return _read_record(data, _scan(before) if before.strip() else None)
    if "nsor(" in text or "rray(" in text or "float" in text:
        text = _SCALAR.sub(r"\1", text)
    if text.lstrip()[:1] in ("|", "│", "┃"):
        text = _table_row(text)
    # COCO's `AP @[ IoU=0.50 | … ] = 0.58` has its name on both sides.
    return None if len(text) > _LONGEST or "@[" in text or _ECHO.search(text) else _scan(text)


def _table_row(text: str) -> str:
    """`│ test_acc │ 0.92 │` as `test_acc: 0.92`; any other text as it is."""
    cells = [cell.strip() for cell in text.replace("│", "|").replace("┃", "|").split("|")]
    is_row = len(cells) == 4 and not cells[0] and not cells[3] and _FULL_NUMBER.fullmatch(cells[2])
    return f"{cells[1]}: {cells[2]}" if is_row else text


def _scan(text: str) -> _Found:
    """Goes from number to number; the words between are the number's label."""
    text = " " + text
    place = _PLACE.match(text)
    epoch, step = (_index(place[1]), _index(place[2] or place[3] or place[4])) if place else (None, None)
    progress: int | None = None
    pairs: list[tuple[int, str, float]] = []
    heading, start, end = "", 0, 0
    for match in _VALUE.finditer(text):
        number, whole, percent = match.groups()
        before = text[start : match.start(1)][-_LONGEST_LABEL:]
        if progress is not None:
            # The clock of a progress bar changes from line to line; without it, the label is found in the cache.
            before = before[before.rfind(" - ") + 1 :]
        label = _label(before)
        kind, end = label.kind, match.end()
        if label.heading is not None and (label.firm or not pairs):
            heading = label.heading
        if kind == _EPOCH:
            epoch = _index(_number(number)) if epoch is None else epoch
        elif kind == _STEP:
            step = _index(number) if step is None and number.isdecimal() else step
        elif whole and (label.opener == "[" or (kind == _NAMELESS and not label.opener)):
            progress = _index(_number(number)) if progress is None else progress
        elif (trust := _trust(label, number, whole, percent)) >= 0:
            name = f"{heading}_{label.name}" if heading and label.bare else label.name
            pairs.append((trust, name, _number(number, whole, percent)))
        if not label.waits:
            start = end
    is_place = epoch is not None or step is not None
    values = _trusted(pairs, text, is_place) if pairs else _value_alone(text) if is_place else {}
    title = step is not None and not values and not any(map(str.isalpha, text[end:]))
    return _Found(values, progress if step is None and values else step, epoch, title)


def _trusted(pairs: list[tuple[int, str, float]], text: str, is_place: bool) -> dict[str, float]:
    least = 0
    if not any(trust == 2 for trust, _, _ in pairs):
        least = 1 if is_place or "it/s" in text or "s/it" in text or "/step" in text else 2
    return {name: value for trust, name, value in pairs if trust >= least}


def _value_alone(text: str) -> dict[str, float]:
    alone = _VALUE_ALONE.fullmatch(text) if "." in text else None
    return {"value": _number(alone[1], percent=alone[2])} if alone and not alone[1].isdecimal() else {}


def _trust(label: _Label, number: str, whole: str | None, percent: str | None) -> int:
    """2: a metric by itself; 1: where the line has an epoch or a step; 0: beside another metric; -1: none."""
    kind = label.kind
    if kind in (_NAMELESS, _SETTING) or label.opener or ("," in number and not _THOUSANDS.fullmatch(number)):
        return -1
    decimal = bool(percent) or not number.lstrip("+-").isdecimal()
    if whole and (kind != _MEASURE or decimal or int(number) > int(whole)):
        return -1
    if kind == _MEASURE:
        return 2 if label.strong or decimal or whole else 1
    if kind == _SHY_MEASURE and decimal:
        return 2 if label.strong else 1
    if not decimal and label.name in _SPLITS:
        # `Train: 3 [ 50/1251 …`: the epoch of timm, not what came of the training.
        return -1
    return 1 if label.strong and decimal else 0


@lru_cache(maxsize=4096)
def _label(before: str) -> _Label:
    text = before.rstrip(" \t'\"")
    opener = text[-1:] if text[-1:] in ("[", "(", "#") else ""
    text = text.rstrip("[(# \t'\"")
    phrase = text.rstrip(":=>→≈~- \t'\"")
    separator = "".join(text[len(phrase) :].replace("'", "").replace('"', "").split())
    if separator not in ("", "-", ":", "=", ":=", "->", "=>", "==>", "→", "≈"):
        return _Label(_NAMELESS, opener=opener)
    strong = separator not in ("", "-") and not before.endswith(":")
    phrase = _ASIDE.sub("", phrase)
    piece = _CUT.split(phrase)[-1]
    kind, name, waits = _name(piece.replace("'s ", " ").split(), strong)
    turns = _SPLIT_WORD.findall(phrase)
    heading = _HEADINGS.get(turns[-1].lower(), turns[-1].lower()) if turns else None
    bare = kind in (_MEASURE, _SHY_MEASURE) and _SPLITS.isdisjoint(_tokens(name))
    return _Label(kind, name, strong, opener, waits, heading, not _SPLIT_WORD.search(piece), bare)


def _name(words: list[str], strong: bool) -> tuple[int, str, bool]:
    """Kind and name that `words` give to the number after them, and whether a measure in them waits for another."""
    words = [word.strip(".").lower() for word in words]
    if "per" in words:
        words = words[: words.index("per")]
    while not strong and words and words[-1] in ("is", "was", "of", "now"):
        words.pop()
    groups: list[list[str]] = [[]]
    for word in words:
        if word in _BREAKS or not word[:1].isalpha():
            groups.append([])
        else:
            groups[-1].append(word)
    named = [_named(group[-5:]) for group in groups]
    measures = [(kind, name) for kind, name in named if kind in (_MEASURE, _SHY_MEASURE)]
    kind, name = named[-1]
    if strong and measures:
        return *measures[-1], False
    if strong or kind in (_NAMELESS, _EPOCH, _STEP):
        return kind, name, bool(measures)
    if _tokens(name)[-1] in _AFTER_SPACE:
        return kind, name, False
    return _SETTING, name, bool(measures)


def _named(words: list[str]) -> tuple[int, str]:
    name = "_".join(words).replace("-", "_")
    kind = _kind_of(name)
    if kind != _OTHER:
        return kind, name
    if words[-1] == "epoch":
        return (_SETTING if "best" in words else _EPOCH), name
    return (_STEP if words[-1] in _STEPS else _OTHER), name


@lru_cache(maxsize=4096)
def _kind_of(name: str) -> int:
    """The last word decides first: data_loss is a measure, loss_weight a setting."""
    tokens = _tokens(name)
    if not tokens:
        return _NAMELESS
    is_goal = tokens[0] in ("target", "goal", "required")
    if tokens[-1] in _MEASURES and not is_goal:
        return _MEASURE
    if is_goal or not _SETTINGS.isdisjoint(tokens):
        return _SETTING
    if not _MEASURES.isdisjoint(tokens):
        return _MEASURE
    return _OTHER if _SHY.isdisjoint(tokens) else _SHY_MEASURE


def _tokens(name: str) -> list[str]:
    """The words of a name; acc1 is an acc, though f1 is no f."""
    words = _TOKEN.findall(name.lower())
    return [word if word in _AFTER_SPACE else word.rstrip("0123456789") for word in words]


def _index(number: str | float | None) -> int | None:
    """An epoch or a step. Beyond 2**53 it is something else, which no store would hold."""
    value = float("nan" if number is None else number)
    return int(value) if abs(value) < 2**53 else None


def _number(number: str, whole: str | None = None, percent: str | None = None) -> float:
    value = float(number.replace(",", "") if "," in number else number)
    if whole:
        return value / max(int(whole), 1)
    if not percent:
        return value
    # 88.1 / 100 is 0.8809999999999999; the text with its point moved is 0.881.
    return float(f"{number}e-2") if number.lstrip("+-").replace(".", "").isdecimal() else value / 100


def _load(text: str) -> dict[str, object] | None:
    """The object that `text` is, written as JSON or as Python prints a dict."""
    text = text if '"' in text else text.replace("'", '"')
    for write in (str, _as_json):
        try:
            data = _DECODER.decode(write(text))
        except (ValueError, RecursionError):
            continue
        return data if isinstance(data, dict) else None
    return None


def _as_json(text: str) -> str:
    return _PYTHON_WORD.sub(lambda match: _PYTHON_WORDS[match[0]], _SCALAR.sub(r"\1", text).replace("'", '"'))


def _read_record(data: dict[str, object], before: _Found | None) -> _Found:
    """`before` is what the text in front of the object says: `Epoch 3: {'loss': 0.31}`."""
    numbers: dict[str, float] = {}
    is_plain = _flatten(data, "", numbers)
    values, step, epoch, _ = before or _Found({})
    step_key = next((key for key in ("step", "global_step", "iteration", "iter") if key in data), "step")
    is_place = step_key in data or "epoch" in data or epoch is not None or step is not None
    step, epoch = _index(numbers.pop(step_key, step)), _index(numbers.pop("epoch", epoch))
    if not (is_plain and is_place):
        numbers = _measured(numbers, is_place or (is_plain and before is None))
    return _Found({**values, **numbers}, step, epoch)


def _flatten(data: dict[str, object], prefix: str, numbers: dict[str, float]) -> bool:
    """Adds the numbers of `data` to `numbers`; whether there was nothing else in it."""
    is_plain = True
    for key, value in data.items():
        if isinstance(value, float):
            numbers[prefix + key] = value
        elif isinstance(value, str) and _FULL_NUMBER.fullmatch(value) and "," not in value:
            numbers[prefix + key] = _number(value)
        elif isinstance(value, dict) and prefix.count(".") < _DEEPEST_RECORD:
            is_plain &= _flatten(value, f"{prefix}{key}.", numbers)
        else:
            is_plain &= value is None
    return is_plain


def _measured(numbers: dict[str, float], may_be_unknown: bool) -> dict[str, float]:
    """`numbers` without the settings, if one is a measure; or, where `may_be_unknown`, none a setting and one no count:
    {'cat': 0, 'dog': 1} numbers the classes."""
    kept = {name: value for name, value in numbers.items() if _kind_of(name) != _SETTING}
    kinds = {_kind_of(name) for name, value in kept.items() if _kind_of(name) == _MEASURE or not value.is_integer()}
    is_known = not kinds.isdisjoint((_MEASURE, _SHY_MEASURE))
    return kept if is_known or (may_be_unknown and kinds and len(kept) == len(numbers)) else {}
