"""The pages of `pumasi serve` in a real browser, on a phone and on a desk, with scripts and without."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from pumasi.serve.app import App, Service
from pumasi.serve.batching import Batcher
from pumasi.serve.ensemble import Ensemble
from pumasi.serve.limits import Limits
from pumasi.serve.preprocessing import Image
from pumasi.serve.server import Connection, Server
from pumasi.serve.texts import KOREAN
from tests.browser import Browser, browsing
from tests.models_to_serve import ensemble, sums

pytestmark = pytest.mark.browser
PHONE, DESK = (390, 800), (1200, 900)
SIDES = Image(size=(8, 8), labels=("left", "right"), examples=([[255] * 4 + [0] * 4] * 8, [[0] * 4 + [255] * 4] * 8))


def share_on_the_right(rows: np.ndarray) -> np.ndarray:
    right, both = rows[:, :, 4:].sum(axis=(1, 2)), rows.sum(axis=(1, 2))
    return np.asarray((right + 0.01) / (both + 0.02))[:, None]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """A page that complains, of a script or of its policy, fails the test."""
    yield chromium
    assert chromium.complaints == []


@contextmanager
def serving(served: Ensemble, token: str = "") -> Iterator[str]:
    """In a thread: the browser is asked from this one."""
    started, over = threading.Event(), threading.Event()
    urls: list[str] = []

    async def serve() -> None:
        app = App(Limits(), rate=0, token=token, is_local=not token, warn=pytest.fail)
        server = Server(app.answer, app.refuse_unread, app.admit, Limits())
        listener = await asyncio.get_running_loop().create_server(lambda: Connection(server), "127.0.0.1", 0)
        batcher = Batcher(served.predict, Limits(), lambda size: None)
        app.service = Service(served, batcher)
        urls.append(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/")
        started.set()
        while not over.is_set():
            await asyncio.sleep(0.02)
        batcher.end()
        listener.close()
        server.close()
        await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(60)
        yield urls[0]
    finally:
        over.set()
        thread.join()


ANSWER = "document.querySelector('.answer')"


@pytest.mark.parametrize("size", [PHONE, DESK])
@pytest.mark.parametrize("language", ["en", "ko"])
def test_a_typed_text_is_judged_without_leaving_the_page(
    browser: Browser, size: tuple[int, int], language: str
) -> None:
    with serving(ensemble(voters=3)) as url:
        browser.be(*size, language=language)
        browser.open(url)
        assert browser.evaluate("document.documentElement.lang") == language
        browser.evaluate("window.same = true")
        browser.click("#text")
        browser.type("</textarea><script>window.hurt = true</script> a good film")
        browser.click("button.main")
        browser.wait_for(ANSWER)
        assert browser.evaluate(f"{ANSWER}.textContent") == "83.33 % good"
        assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 3
        assert browser.evaluate("window.same && !window.hurt")
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is too wide"
        if language == "ko":
            assert browser.evaluate("document.querySelector('#result h2').textContent") == KOREAN["answer"]


def test_an_example_is_a_click_away(browser: Browser) -> None:
    with serving(ensemble()) as url:
        browser.be(*PHONE)
        browser.open(url)
        browser.click("button[name=example][value='1']")
        browser.wait_for(ANSWER)
        assert browser.evaluate("document.querySelector('#text').value") == "<b>bad</b> & 'worse'"
        assert browser.evaluate(f"{ANSWER}.textContent") == "83.33 % bad"


def test_the_page_works_without_scripts(browser: Browser) -> None:
    with serving(ensemble()) as url:
        browser.be(*DESK, scripts=False)
        browser.open(url)
        browser.click("#text")
        browser.type("bad & <i>worse</i>")
        browser.expect_load()
        browser.click("button.main")
        browser.until_loaded()
        html = browser.html()
        assert '<p class="answer">83.33 % bad</p>' in html
        assert "bad &amp; &lt;i&gt;worse&lt;/i&gt;</textarea>" in html


def test_a_language_is_chosen_by_a_link_and_kept(browser: Browser) -> None:
    with serving(ensemble()) as url:
        browser.be(*DESK, language="en")
        browser.open(url)
        browser.expect_load()
        browser.click("a[lang=ko]")
        browser.until_loaded()
        browser.open(f"{url}docs")
        assert browser.evaluate("document.documentElement.lang") == "ko"
        assert browser.evaluate("document.querySelector('.address').textContent") == url
        browser.open(f"{url}?lang=en")


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_a_picture_is_drawn_and_cleared(browser: Browser, size: tuple[int, int]) -> None:
    with serving(ensemble(share_on_the_right, SIDES)) as url:
        browser.be(*size)
        browser.open(url)
        x, y = browser.middle("#canvas")
        browser.drag([(x + 60, y - 50), (x + 70, y), (x + 60, y + 50)])
        browser.click("button.main")
        browser.wait_for(f"{ANSWER} && {ANSWER}.textContent.endsWith('right')")
        browser.click("#clear")
        browser.wait_for("!document.querySelector('.answer')")
        x, y = browser.middle("#canvas")
        browser.drag([(x - 60, y - 50), (x - 70, y), (x - 60, y + 50)])
        browser.click("button.main")
        browser.wait_for(f"{ANSWER} && {ANSWER}.textContent.endsWith('left')")
        browser.click("button[name=example][value='1']")
        browser.wait_for(f"{ANSWER}.textContent.endsWith('right')")
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is too wide"


def test_numbers_are_typed_as_json_and_a_mistake_is_explained(browser: Browser) -> None:
    with serving(sums()) as url:
        browser.be(*DESK)
        browser.open(url)
        browser.click("#json")
        browser.type("[1, 2]")
        browser.click("button.main")
        browser.wait_for("document.querySelector('.refusal')")
        assert "it has to be 3" in browser.evaluate("document.querySelector('.refusal').textContent")
        browser.evaluate("document.querySelector('#json').value = '[1, 2, 3]'")
        browser.click("button.main")
        browser.wait_for("document.querySelector('.output')")
        assert browser.evaluate("document.querySelector('.output').textContent") == "[6]"
        assert "422" in browser.complaints.pop()


def test_the_address_with_the_token_opens_the_page_and_forgets_the_token(browser: Browser) -> None:
    with serving(ensemble(), token="a-secret") as url:
        browser.be(*PHONE)
        browser.open(f"{url}?token=a-secret")
        browser.wait_for("document.querySelector('#text')")
        assert browser.evaluate("location.href") == url
        assert "a-secret" not in browser.evaluate("document.cookie")
        browser.click("button[name=example][value='0']")
        browser.wait_for(ANSWER)


def test_a_server_that_is_gone_is_a_sentence(browser: Browser) -> None:
    with serving(ensemble()) as url:
        browser.be(*PHONE)
        browser.open(url)
    browser.click("button[name=example][value='0']")
    browser.wait_for("document.querySelector('.refusal')")
    assert "does not answer" in browser.evaluate("document.querySelector('.refusal').textContent")
    browser.complaints.clear()


def test_the_picture_that_the_browser_encodes_is_the_one_that_is_decoded(browser: Browser) -> None:
    """Chromium's encoder chooses filters of its own for each line."""
    from pumasi.serve import png

    with serving(ensemble()) as url:
        browser.be(*DESK)
        browser.open(url)
        script = """(() => {
            const canvas = document.createElement("canvas");
            canvas.width = 64; canvas.height = 48;
            const pen = canvas.getContext("2d");
            const shades = pen.createLinearGradient(0, 0, 64, 48);
            shades.addColorStop(0, "#fff"); shades.addColorStop(1, "#205080");
            pen.fillStyle = shades; pen.fillRect(0, 0, 64, 48);
            pen.beginPath(); pen.arc(30, 20, 12, 0, 7); pen.fill();
            const pixels = Array.from(pen.getImageData(0, 0, 64, 48).data);
            return [canvas.toDataURL("image/png"), pixels];
        })()"""
        url_of_picture, pixels = browser.evaluate(script)
        decoded = png.decode(base64.b64decode(url_of_picture.partition(",")[2]))
        assert decoded.reshape(-1, decoded.shape[2])[:, :3].tolist() == np.reshape(pixels, (-1, 4))[:, :3].tolist()


def test_pictures_of_the_pages_can_be_kept(browser: Browser, tmp_path: Path) -> None:
    with serving(ensemble(voters=2)) as url:
        browser.be(*PHONE, language="ko", dark=True)
        browser.open(url)
        browser.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
