"""Drives a headless Chromium through its debugging pipe, and reads a page's contents, console and network requests."""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

PATH = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 120  # seconds for one answer; a loaded machine takes long to start a browser


def need():
    """Skips the test on a machine without Chromium."""
    if not PATH:
        print("SKIPPED: there is no chromium here")
        sys.exit(77)


class Browser:
    """Controls a browser with one page. `with Browser() as browser: browser.open(path); browser.run("document.title")`"""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        to_child, self.to = os.pipe()
        self.answers, from_child = os.pipe()
        wiring = 'exec 3<&%d 4>&%d; exec "$@"' % (to_child, from_child)
        self.child = subprocess.Popen(
            ["bash", "-c", wiring, "browser", PATH, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
             "--user-data-dir=" + self.folder.name, "about:blank"],
            pass_fds=(to_child, from_child), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "TZ": "UTC"})
        os.close(to_child)
        os.close(from_child)
        self.number, self.rest, self.session, self.events = 0, b"", None, []
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(domain + ".enable")
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.ask("Browser.close")
            self.child.wait(PATIENCE)
        except (OSError, EOFError, subprocess.TimeoutExpired):
            self.child.kill()
            self.child.wait()
        os.close(self.to)
        os.close(self.answers)
        self.folder.cleanup()

    def read(self):
        while b"\0" not in self.rest:
            more = os.read(self.answers, 1 << 20)
            if not more:
                raise EOFError("the browser has ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            message = self.read()
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError("%s: %s" % (method, message["error"]))
                return message["result"]
            self.events.append(message)

    def look(self, width=1280, height=900, dark=False, touch=False, scale=1):
        """Sets the size of the screen, and light or dark colours."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=touch)
        self.ask("Emulation.setTouchEmulationEnabled", enabled=touch)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, path):
        self.events = []
        self.ask("Page.navigate", url="file://" + path)
        end = time.monotonic() + PATIENCE
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            if time.monotonic() > end:
                raise TimeoutError(path)
            self.events.append(self.read())

    def run(self, script):
        """Returns the value of an expression. If the value is a promise, waits for it."""
        done = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(json.dumps(done["exceptionDetails"])[:2000])
        return done["result"].get("value")

    def said(self):
        """Returns the messages of the console, and the errors of scripts."""
        self.run("1")
        return [json.dumps(e["params"])[:1000] for e in self.events
                if e.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")]

    def asked(self):
        """Returns the addresses that the page requested, without its own."""
        urls = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith("file://") and not url.startswith("data:")] + [
            url for url in urls if url.startswith("file://")][1:]

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1 if kind == "mousePressed" else 0, clickCount=1)

    def press(self, key, code=0):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **({"text": key} if len(key) == 1 and kind == "keyDown" else {}))

    def picture(self, path, whole=False, clip=None):
        more = {"clip": {**clip, "scale": 1}} if clip else {}
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole or bool(clip), **more)["data"]
        with open(path, "wb") as out:
            out.write(base64.b64decode(data))

    def contents(self):
        """Returns the visible page with all sections open, as HTML without style and script."""
        self.run("""(() => {
            for (let last = -1, all; (all = document.querySelectorAll("details")).length !== last; last = all.length)
                for (const of of all) { of.open = true; of.fill?.(); }
        })()""")
        return self.run("""(() => {
            const copy = document.documentElement.cloneNode(true);
            for (const of of copy.querySelectorAll("script, style, noscript, meta, link, #tip, #said")) of.remove();
            return copy.outerHTML;
        })()""")


def data_of(page):
    """Returns the data that the command wrote into a page."""
    return json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])
