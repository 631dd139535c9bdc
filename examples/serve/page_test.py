"""Draws digits on the service's page in headless Chromium, and reads the answers.

    apt-get install chromium chromium-driver
    pip install selenium==4.51.0
    python page_test.py http://127.0.0.1:8080 # of a service with the trained network
    python page_test.py http://127.0.0.1:8080 page.png # keeps a picture of the page

The profile is a temporary folder, and nothing but the service is asked.
"""

import json
import math
import sys
import tempfile
import urllib.request

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

def arc(x, y, width, height, begin, end):
    """Returns a part of an ellipse, clockwise from above, in turns."""
    angles = [math.tau * (begin + (end - begin) * at / 16) for at in range(17)]
    return [(x + width * math.sin(angle), y - height * math.cos(angle)) for angle in angles]


# Lines on the canvas, of which each side is 1.
DIGITS = {
    0: [arc(0.5, 0.5, 0.24, 0.38, 0, 1)],
    1: [[(0.38, 0.25), (0.52, 0.1), (0.52, 0.9)]],
    2: [arc(0.5, 0.3, 0.24, 0.2, -0.25, 0.35) + [(0.28, 0.9), (0.76, 0.9)]],
    3: [arc(0.48, 0.3, 0.22, 0.2, -0.2, 0.5) + arc(0.48, 0.7, 0.25, 0.21, 0, 0.7)],
    4: [[(0.5, 0.08), (0.25, 0.6), (0.8, 0.6)], [(0.6, 0.4), (0.55, 0.95)]],
    5: [[(0.72, 0.1), (0.34, 0.1), (0.32, 0.45)] + arc(0.48, 0.65, 0.24, 0.24, -0.1, 0.7)],
    7: [[(0.25, 0.12), (0.75, 0.12), (0.45, 0.92)], [(0.35, 0.5), (0.7, 0.5)]],
    9: [arc(0.5, 0.32, 0.2, 0.22, 0.25, 1.25) + [(0.68, 0.5), (0.6, 0.92)]],
}

# Notes each request. `respond` answers it, and a test may replace that.
SPY = """
const real = window.fetch;
window.sent = [];
window.respond = (...request) => real(...request);
window.fetch = (url, options) => (sent.push({ url, options }), respond(url, options));
"""
# Holds each answer back until the test calls its function. An abort does not stop it: a response
# that has arrived cannot be stopped either.
HOLD = """
window.held = [];
window.respond = (url, { signal, ...options }) => new Promise(resolve => held.push(async () => {
  resolve(await real(url, options));
}));
"""


class Page:
    def __init__(self, address, profile):
        options = webdriver.ChromeOptions()
        for option in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"):
            options.add_argument(option)
        options.add_argument("--window-size=1000,800")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService("/usr/bin/chromedriver")
        options.binary_location = "/usr/bin/chromium"
        self.browser = webdriver.Chrome(options=options, service=service)
        self.browser.get(address)
        self.canvas = self.browser.find_element(By.ID, "canvas")

    def text(self, name):
        return self.browser.find_element(By.ID, name).text

    def click(self, name):
        self.browser.find_element(By.ID, name).click()

    def answer(self):
        """Waits for the answer to the last drawing."""
        WebDriverWait(self.browser, 60).until(lambda _: self.text("digit") != "–" or self.text("error"))
        assert not self.text("error"), self.text("error")
        return int(self.text("digit"))

    def draw(self, lines, end="pointer_up"):
        box = self.canvas.rect
        for line in lines:
            mouse = PointerInput("mouse", "mouse")
            actions = ActionBuilder(self.browser, mouse=mouse, duration=20)
            places = [(int(box["x"] + x * box["width"]), int(box["y"] + y * box["height"])) for x, y in line]
            actions.pointer_action.move_to_location(*places[0]).pointer_down()
            for place in places[1:]:
                actions.pointer_action.move_to_location(*place)
            if end:
                getattr(actions.pointer_action, end)()
            actions.perform()

    def script(self, text, *arguments):
        return self.browser.execute_script(text, *arguments)

    def lines(self):
        """Returns the drawing, with the canvas as the unit."""
        return [[at / 288 for at in line] for line in self.script("return lines")]

    def image(self, lines):
        """Draws on an empty canvas, and returns the rows of the image that was sent."""
        self.click("clear")
        self.draw(lines)
        self.answer()
        data = self.script("return JSON.parse(sent.at(-1).options.body).inputs[0].data")
        return [data[row : row + 8] for row in range(0, 64, 8)]

    def error(self):
        WebDriverWait(self.browser, 60).until(lambda _: self.text("error"))
        assert self.text("digit") == self.text("batch") == "–", "no answer stays beside an error"
        return self.text("error")


def main(address, picture=None):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        page = Page(address, profile)
        try:
            check(page, address, picture)
        finally:
            page.browser.quit()


def check(page, address, picture):
    assert page.browser.title == "Digits"
    assert page.text("digit") == "–"
    seen = []
    for digit, lines in DIGITS.items():
        # Every other one is small, and in a corner.
        if len(seen) % 2:
            lines = [[(0.55 + 0.4 * x, 0.55 + 0.4 * y) for x, y in line] for line in lines]
        page.click("clear")
        assert page.text("digit") == "–" and page.text("batch") == "–"
        page.draw(lines)
        # A line more is a question more, so wait for the answer to the whole.
        page.click("ask")
        seen.append((digit, page.answer()))
        assert int(page.text("batch")) >= 1
        rows = page.browser.find_elements(By.CSS_SELECTOR, "#logits tr")
        shares = [float(row.find_elements(By.TAG_NAME, "td")[1].text.removesuffix(" %")) for row in rows]
        assert len(shares) == 10 and abs(sum(shares) - 100) < 1, shares
        assert shares.index(max(shares)) == seen[-1][1], "the digit has the largest probability"
    right = sum(drawn == read for drawn, read in seen)
    print(f"drawn and read: {seen}")
    assert right >= len(DIGITS) - 1, "a network that was trained reads most of them"
    with urllib.request.urlopen(f"{address}/v2/models/digits") as answer:
        versions = json.load(answer)["versions"]
    assert [page.text("version")] == versions, (page.text("version"), versions)
    if picture:
        page.browser.save_screenshot(picture)

    # A line by the keyboard: to the canvas, down with the pen, twelve steps, and up again.
    page.click("clear")
    page.canvas.send_keys(Keys.ARROW_UP)
    keys = ActionChains(page.browser).send_keys(*[Keys.ARROW_UP] * 10, Keys.SPACE, *[Keys.ARROW_DOWN] * 22, Keys.SPACE)
    keys.perform()
    assert page.answer() in range(10)

    page.script(SPY.replace("const real", "window.real"))
    check_drawing(page)
    check_lateness(page)

    # An empty page has no answer, and the browser reported nothing.
    page.click("clear")
    assert page.text("digit") == "–" and page.text("version") == "–"
    log = [entry for entry in page.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert not log, log
    print("the page: every digit has its answer, its batch and the version; the keyboard works")
    # The browser reports these.
    check_errors(page)


def check_drawing(page):
    """Checks that what is drawn is what is sent."""
    # Two events far apart have a line between them, and an answer is about the whole of it.
    page.image([[(0.2, 0.3), (0.8, 0.7)]])
    long = [line for line in page.lines() if math.dist(line[:2], line[2:]) > 0.1]
    assert sum(math.dist(line[:2], line[2:]) for line in long) > 0.7, page.lines()
    # The moves that the browser merged are drawn, not only their last.
    page.click("clear")
    page.script("canvas.addEventListener('pointerdown', event => { window.down = event; }, { once: true })")
    page.draw([[(0.2, 0.2)]], end=None)
    page.script("""
      const move = (dx, dy) => new PointerEvent("pointermove", {
        pointerId: down.pointerId, clientX: down.clientX + dx, clientY: down.clientY + dy,
      });
      canvas.dispatchEvent(new PointerEvent("pointermove", {
        ...{ pointerId: down.pointerId, clientX: down.clientX, clientY: down.clientY + 100 },
        coalescedEvents: [move(100, 0), move(100, 100), move(0, 100)],
      }));
    """)
    assert len(page.lines()) == 4, page.lines()
    ActionBuilder(page.browser).clear_actions()
    page.answer()
    # A line that leaves ends at the edge, and goes on where it comes back.
    page.image([[(0.5, 0.2), (1.3, 0.2), (1.3, 0.8), (0.5, 0.8)]])
    xs = [at for line in page.lines() for at in line[::2]]
    assert max(xs) == 1, xs
    assert not any(line[0] == line[2] == 1 and line[1] != line[3] for line in page.lines()), page.lines()
    assert {round(line[3], 1) for line in page.lines()} == {0.2, 0.8}, page.lines()
    # A line that the browser takes from the pointer has an answer, and no more of it is drawn.
    page.click("clear")
    page.draw([[(0.2, 0.2), (0.6, 0.2)]], end=None)
    page.script("canvas.releasePointerCapture(down.pointerId)")
    # The capture ends with the next move.
    move = ActionBuilder(page.browser, mouse=PointerInput("mouse", "mouse"))
    move.pointer_action.move_to(page.canvas, 60, 0)
    move.perform()
    page.answer()
    assert max(line[2] for line in page.lines()) < 0.65, page.lines()
    ActionBuilder(page.browser).clear_actions()
    # A click is a dot, in the middle of the image.
    dot = page.image([[(0.1, 0.9)]])
    assert sum(map(sum, dot)) > 16 and dot == dot[::-1] and dot == [row[::-1] for row in dot], dot
    # A digit of any size and place has the same image. It is as tall as those of the data set, has
    # as much ink, and its centre of mass is in the middle.
    large = page.image([[(0.2, 0.1), (0.8, 0.1), (0.4, 0.9)]])
    small = page.image([[(0.65, 0.625), (0.8, 0.625), (0.7, 0.825)]])
    other = sum(abs(one - two) for rows in zip(large, small) for one, two in zip(*rows))
    ink = sum(map(sum, large))
    assert other < ink / 10, (large, small)
    assert all(any(row) for row in large) and abs(ink - 312) < 34, large
    middle = sum(value * (at + 0.5) for row in large for at, value in enumerate(row)) / ink
    assert abs(middle - 4) < 0.3, middle


def check_lateness(page):
    """Checks that an answer is shown for the newest drawing alone."""
    page.script(HOLD)
    page.click("clear")
    before = page.script("return sent.length")
    page.draw([DIGITS[1][0]])
    page.click("clear")
    page.draw(DIGITS[0])
    signals = page.script("return sent.map(request => request.options.signal.aborted)")[before:]
    assert signals == [True, False], signals
    page.script("return held[1]()")
    newest = page.answer()
    page.script("return held[0]().then(() => new Promise(done => setTimeout(done)))")
    assert page.answer() == newest == 0, "an earlier answer replaced a newer one"
    # A line that begins takes the answer off, and no answer from before it is shown.
    page.click("ask")
    page.draw([DIGITS[4][1]], end=None)
    assert page.text("digit") == "–"
    page.script("return held[2]().then(() => new Promise(done => setTimeout(done)))")
    assert page.text("digit") == "–", "the answer to a drawing without the new line"
    ActionBuilder(page.browser).clear_actions()
    page.script("window.respond = (...request) => real(...request)")
    page.click("clear")


def check_errors(page):
    """Checks that an error is shown, and no answer."""
    page.draw(DIGITS[0])
    page.answer()
    # The service itself refuses a value that is no grey value.
    page.script("""window.respond = (url, options) => {
      const body = JSON.parse(options.body);
      body.inputs[0].data[0] = 17;
      return real(url, { ...options, body: JSON.stringify(body) });
    };""")
    page.click("ask")
    error = page.error()
    assert error.startswith("400: ") and "17" in error, error
    for body in ('{"error": "256 rows are queued"}', "256 rows are queued"):
        page.script(f"window.respond = async () => new Response({body!r}, {{ status: 503 }})")
        page.click("ask")
        WebDriverWait(page.browser, 60).until(lambda _: page.text("error") == "503: 256 rows are queued")
        assert page.error()
    page.script("window.respond = (...request) => real(...request)")
    page.click("ask")
    assert page.answer() == 0
    print("the page: sends what is drawn, shows the newest answer alone, and says why there is none")


if __name__ == "__main__":
    main(*sys.argv[1:])
