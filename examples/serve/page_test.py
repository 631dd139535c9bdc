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

# Lines on the canvas, of which each side is 1.
DIGITS = {
    0: [[(0.5 + 0.24 * math.sin(at / 24 * math.tau), 0.5 - 0.38 * math.cos(at / 24 * math.tau)) for at in range(25)]],
    1: [[(0.38, 0.25), (0.52, 0.1), (0.52, 0.9)], [(0.36, 0.9), (0.7, 0.9)]],
    4: [[(0.5, 0.08), (0.25, 0.6), (0.8, 0.6)], [(0.6, 0.4), (0.55, 0.95)]],
    7: [[(0.25, 0.12), (0.75, 0.12), (0.45, 0.92)], [(0.35, 0.5), (0.7, 0.5)]],
}


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

    def draw(self, lines):
        box = self.canvas.rect
        for line in lines:
            mouse = PointerInput("mouse", "mouse")
            actions = ActionBuilder(self.browser, mouse=mouse, duration=20)
            places = [(int(box["x"] + x * box["width"]), int(box["y"] + y * box["height"])) for x, y in line]
            actions.pointer_action.move_to_location(*places[0]).pointer_down()
            for place in places[1:]:
                actions.pointer_action.move_to_location(*place)
            actions.pointer_action.pointer_up()
            actions.perform()


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
    assert right >= 3, "a network that was trained reads most of them"
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

    # An empty page has no answer, and the browser reported nothing.
    page.click("clear")
    assert page.text("digit") == "–" and page.text("version") == "–"
    log = [entry for entry in page.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert not log, log
    print("the page: every digit has its answer, its batch and the version; the keyboard works")


if __name__ == "__main__":
    main(*sys.argv[1:])
