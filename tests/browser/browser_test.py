#!/usr/bin/env python3
"""Looks at the status page in Chromium, headless: tests/browser/browser_test.py --bin build/release/bin.

Needs Debian's chromium and chromium-driver (tools/install --nightly). --shots DIR keeps pictures of the page.
"""
import argparse
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--window-size=1280,1600"]
ARGUMENTS = argparse.Namespace(bin=Path("build/release/bin"), shots=None)
HOSTILE = "\"><script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"


def status(step, ranks=4, **more):
    """Return a status as the scheduler gives it."""
    every = [{"rank": r, "role": "worker", "node_id": str(r), "pid": 4000 + r, "host": HOSTILE if r == 1 else "host1",
              "state": "training", "version": step, "step_age_s": 0.1, "own_step_ms": 30.0, "between_ms": 1.0,
              "loss": 2.0 / step + r / 100} for r in range(ranks)]
    recovery = {"recovery": 1, "generation": 2, "cause": f"rank 1 ended: {HOSTILE}", "kind": "exited", "ranks": [1], "version": 7,
                "steps_lost": 0, "stop_ms": 0.6, "plan_ms": 2.5, "repair_ms": 2.5, "resume_ms": 2.6, "first_step_ms": 13.9,
                "over_ms": 13.9, "at": "2026-11-29T13:45:12.345Z", "successors": []}
    return {"job": "browsed", "state": "running", "version": step, "world_size": ranks, "servers": 0, "recoveries": 1,
            "generation": 2, "ranks": every, "spares": [], "snapshots": [], "recovery_reports": [recovery], **more}


def until(condition, what, seconds=60):
    """Wait until the condition holds; return its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"after {seconds} s still not: {what}")


class Browser:
    """A Chromium with a profile of its own, by way of chromedriver."""

    def __init__(self, *flags, preferences=None):
        self.profile = tempfile.mkdtemp(prefix="holdfast-browser-")
        self.log = open(Path(self.profile) / "driver.log", "w+")
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)

        def port():
            self.log.seek(0)
            return re.search(r"successfully on port (\d+)", self.log.read())
        self.at = f"http://127.0.0.1:{until(port, 'chromedriver listens')[1]}/session"
        options = {"args": [*FLAGS, *flags, f"--user-data-dir={self.profile}/profile"], "prefs": preferences or {}}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self.at += "/" + self._ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def _ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.at + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, url):
        """Load a page."""
        self._ask("POST", "/url", {"url": url})

    def run(self, script):
        """Run a script in the page, as a person at its console, and return what it returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def source(self):
        """Return the page as it is now."""
        return self._ask("GET", "/source")

    def address(self):
        """Return the page's address."""
        return self._ask("GET", "/url")

    def logged(self, kind):
        """Return the messages of a log since the last call."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": kind})]

    def shot(self, name):
        """Keep a picture, if somebody wants to look."""
        if ARGUMENTS.shots:
            Path(ARGUMENTS.shots, name).write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def close(self):
        """End the browser and its driver."""
        try:
            self._ask("DELETE", "")
        finally:
            os.killpg(self.driver.pid, signal.SIGKILL)  # The group that this test has started.
            self.driver.wait()
            self.log.close()
            shutil.rmtree(self.profile, ignore_errors=True)


class StatusPage(unittest.TestCase):
    """The page of a status that a file has, which the tests change."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="holdfast-page-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.file = Path(self.folder, "status.json")
        self.now(status(100))
        self.server = subprocess.Popen([ARGUMENTS.bin / "holdfast", "serve", "--listen", "127.0.0.1:0", "--status", self.file],
                                       stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.server.stdout.close)
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.kill)
        self.url = re.search(r"http://\S+", self.server.stdout.readline())[0]

    def now(self, what):
        """Have the status be this one."""
        new = Path(self.folder, "new")
        new.write_text(json.dumps(what))
        new.rename(self.file)

    def browser(self, *flags, **more):
        browser = Browser(*flags, **more)
        self.addCleanup(browser.close)
        browser.open(self.url)
        until(lambda: "<h1>browsed</h1>" in browser.source(), "the page is there, without its token")
        self.assertNotIn("token", browser.address())
        return browser

    def test_is_live_and_draws(self):
        browser = self.browser()
        loaded = browser.run("return performance.timeOrigin")
        for step in (110, 120, 130):
            self.now(status(step))
            until(lambda: f"<dd>{step}</dd>" in browser.source(), f"step {step} is shown")
        self.assertEqual(browser.run("return performance.timeOrigin"), loaded, "it was loaded again")
        self.assertEqual(browser.run("return document.querySelectorAll('figure svg path').length"), 2)
        self.assertEqual(browser.run("return document.querySelectorAll('td svg rect').length"), 4)
        widths = browser.run("return [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)")
        self.assertTrue(all(width > 100 for width in widths), widths)
        self.assertTrue(browser.run("return document.documentElement.scrollWidth <= innerWidth"), "it is too wide")
        browser.shot("light.png")
        self.server.kill()
        until(lambda: browser.run("return !document.getElementById('lost').hidden"), "the page says that it is old")

    def test_runs_no_foreign_script_and_loads_nothing_foreign(self):
        browser = self.browser()
        self.now(status(110, state="standing still", holds_up=[{"rank": 1, "sentence": HOSTILE}]))
        until(lambda: "<dd>110</dd>" in browser.source(), "the next step is shown")
        self.assertEqual(browser.run("return document.title"), "Standing still - browsed")
        self.assertEqual(browser.run("return document.images.length + document.scripts.length"), 1)
        self.assertIn(HOSTILE, browser.run("return document.querySelector('.troubles').textContent"))
        self.assertEqual(browser.run("return document.cookie"), "", "scripts see the token")
        ours = self.url.split("/?")[0]
        asked = {json.loads(m)["message"]["params"]["request"]["url"] for m in browser.logged("performance")
                 if json.loads(m)["message"]["method"] == "Network.requestWillBeSent"}
        self.assertEqual({url for url in asked if not url.startswith((ours, "data:", "chrome:"))}, set())  # chrome: a new tab.
        self.assertEqual([m for m in browser.logged("browser") if "Content Security Policy" in m or "Uncaught" in m], [])

    def test_works_without_javascript(self):
        browser = self.browser(preferences={"profile.managed_default_content_settings.javascript": 2})
        self.now(status(110))
        until(lambda: "<dd>110</dd>" in browser.source(), "it is loaded again by itself")
        page = browser.source()
        self.assertEqual(page.count('<td class="state">'), 4)
        self.assertIn("rank 1 ended", page)
        self.assertIn('<svg class="chart"', page)
        browser.shot("without_javascript.png")

    def test_is_dark_where_that_is_wanted(self):
        light = self.browser().run("return getComputedStyle(document.body).backgroundColor")
        browser = self.browser("--blink-settings=preferredColorScheme=0")
        dark = browser.run("return getComputedStyle(document.body).backgroundColor")
        brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (light, dark)]
        self.assertGreater(brightness[0], 600)
        self.assertLess(brightness[1], 150)
        browser.shot("dark.png")

    def test_shows_ten_thousand_ranks_if_asked(self):
        self.now(status(200, 10_000))
        browser = self.browser()
        until(lambda: "9,900 more are not shown" in browser.source(), "most are left out")
        self.assertEqual(browser.run("return document.querySelectorAll('.ranks tbody tr').length"), 100)
        browser.run("document.querySelector('.ranks').closest('section').querySelector('p a').click()")
        until(lambda: browser.run("return document.querySelectorAll('.ranks tbody tr').length") == 10_000, "all are shown")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, default=ARGUMENTS.bin)
    parser.add_argument("--shots", metavar="DIR")
    parser.parse_known_args(namespace=ARGUMENTS)
    known, others = parser.parse_known_args()
    missing = [tool for tool in ("chromium", "chromedriver") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"browser_test: {' and '.join(missing)} not found: tools/install --nightly")
    unittest.main(argv=[sys.argv[0], *others])
