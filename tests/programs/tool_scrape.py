#!/usr/bin/env python3
"""Scrapes `gpucache metrics --listen`, also by Prometheus, and tries the alerts and the dashboard of docs/prometheus."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

from harness import Tally, environment
from report_live_page import COMMAND, Place, Program, eventually

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCS = os.path.join(ROOT, "docs", "prometheus")
OPEN, PLAIN = "application/openmetrics-text", "text/plain"
tally = Tally()


class Server:
    """Runs `gpucache metrics --listen` for a Place, on a free port."""

    def __init__(self, place, where="127.0.0.1:0"):
        self.child = subprocess.Popen([COMMAND, "metrics", "--listen=" + where], env={**environment(False), **place.options},
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = self.child.stderr.readline()
        self.port = int(re.search(r":(\d+)/metrics$", self.said).group(1))

    def get(self, path="/metrics", accept=PLAIN):
        """Returns status, content type and text of the answer."""
        request = urllib.request.Request("http://127.0.0.1:%d%s" % (self.port, path), headers={"Accept": accept})
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, None, ""

    def raw(self, text):
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(text)
            return connection.makefile("rb").read()

    def end(self):
        self.child.terminate()
        self.child.communicate()
        return self.child.returncode


def values(text, family, label):
    """Returns {label: value} of the samples of a metric family."""
    found = re.findall(r'^%s\{(.*)\} ([\d.]+)$' % family, text, re.M)
    return {re.search(r'%s="([^"]*)"' % label, labels).group(1): float(value) for labels, value in found
            if label + '="' in labels}


def answers():
    place = Place()
    server = Server(place)
    tally.check(server.said.startswith("gpucache: metrics at http://127.0.0.1:"), "scrape: says where", server.said)
    tally.check(server.get()[0] == 200, "scrape: without a process")
    one = Program(place, {"SLURM_JOB_ID": "77", "RANK": "1", "WORLD_SIZE": "2"})
    other = Program(place)
    one.do("allocate 5000")
    status, kind, text = server.get()
    tally.check(status == 200 and kind.startswith("text/plain; version=0.0.4") and "# EOF" not in text, "scrape: Prometheus's text", kind)
    live = values(text, "gpucache_requested_bytes", "pid")
    tally.check(live.get(str(one.pid)) == 6000 and str(other.pid) in live, "scrape: the metrics", live)
    tally.check("77" in values(text, "gpucache_requested_bytes", "slurm_job"), "scrape: the job", text[:600])
    tally.check(socket.gethostname()[:64] in values(text, "gpucache_requested_bytes", "host"), "scrape: the host", text[:600])
    one.do("allocate 1000")
    text = server.get()[2]
    tally.check(values(text, "gpucache_requested_bytes", "pid")[str(one.pid)] == 7000, "scrape: the metrics are read anew", text[:600])
    status, kind, text = server.get(accept=OPEN + ";version=1.0.0," + PLAIN + ";q=0.5")
    tally.check(kind.startswith(OPEN) and text.endswith("# EOF\n"), "scrape: OpenMetrics", kind)
    odd(server)
    tally.check(server.end() == -15, "scrape: SIGTERM ends it")
    for program in (one, other):
        program.end()


def odd(server):
    """Checks that wrong requests are refused, and that clients that send or read nothing block no other client for long."""
    tally.check(server.get("/")[0] == 404 and server.get("/metrics2")[0] == 404, "scrape: another path")
    tally.check(server.get("/metrics?a=b")[0] == 200, "scrape: a query")
    tally.check(server.raw(b"POST /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 405"), "scrape: another method")
    tally.check(server.raw(b"GET /" + b"a" * 9000 + b"\r\n\r\n")[:12] in (b"HTTP/1.0 400", b""), "scrape: a long request")
    tally.check(server.raw(b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n").endswith(b"# EOF\n"), "scrape: by hand")
    with socket.create_connection(("127.0.0.1", server.port)) as silent, socket.create_connection(("127.0.0.1", server.port)) as deaf:
        deaf.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        tally.check(server.get()[0] == 200, "scrape: after silent clients")
        tally.check(silent.recv(12) == b"HTTP/1.0 400", "scrape: a silent client is refused")
    gone = socket.create_connection(("127.0.0.1", server.port))
    gone.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    gone.close()
    tally.check(server.get()[0] == 200, "scrape: after a client that left")


def places():
    place = Place()
    for where in ("nonsense", "localhost:1", "1.2.3:x", "::1:9400", "[::1]", "127.0.0.1:", "127.0.0.1:99999"):
        done = place.tool("metrics", "--listen=" + where)
        tally.check(done.returncode == 125 and "wanted is --listen=ADDRESS:PORT" in done.stderr, "scrape: " + where, done.stderr)
    for where, expected in (("0", "http://127.0.0.1:"), (":0", "http://127.0.0.1:"), ("[::1]:0", "http://[::1]:")):
        if where.startswith("[") and not os.path.exists("/proc/net/if_inet6"):
            continue
        server = Server(place, where)
        tally.check(expected in server.said, "scrape: " + where, server.said)
        server.end()
    server = Server(place)
    done = place.tool("metrics", "--listen=%d" % server.port)
    tally.check(done.returncode == 125 and "in use" in done.stderr, "scrape: a port that is taken", done.stderr)
    server.end()


def dashboard():
    """Checks that a scrape has every metric family that the dashboard and the alerts query."""
    place = Place()
    program = Program(place)
    server = Server(place)
    text = server.get()[2]
    server.end()
    program.end()
    families = set(re.findall(r"^# TYPE (\w+) ", text, re.M))
    with open(os.path.join(DOCS, "dashboard.json")) as file:
        board = json.load(file)
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    with open(os.path.join(DOCS, "alerts.yml")) as file:
        queries.append(file.read())
    asked = {name for query in queries for name in re.findall(r"\bgpucache_\w+", query)}
    tally.check(len(asked) > 8 and asked <= families, "scrape: unknown families", asked - families)


def prometheus():
    """Lets Prometheus scrape the processes of two simulated machines, with the files of docs/prometheus."""
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        print("SKIPPED: the checks by Prometheus: it is not installed (package prometheus)")
        return
    done = subprocess.run(["promtool", "test", "rules", "alerts_test.yml"], cwd=DOCS, capture_output=True, text=True)
    tally.check(done.returncode == 0, "scrape: the alerts", done.stdout + done.stderr)
    machines = [Place(), Place()]
    programs = [Program(place, {"SLURM_JOB_ID": job, "GPUCACHE_MEMORY_LIMIT": "1G"}) for place, job in zip(machines, ("7", "8"))]
    servers = [Server(place) for place in machines]
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(DOCS, "prometheus.yml")) as file:
            config = file.read().replace("15s", "1s")
        for name, server in zip(("gpu1", "gpu2"), servers):
            config = config.replace(name + ".example:9400", "127.0.0.1:%d" % server.port)
        with open(os.path.join(folder, "prometheus.yml"), "w") as file:
            file.write(config)
        shutil.copy(os.path.join(DOCS, "alerts.yml"), folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with open(os.path.join(folder, "log"), "w+") as log:
            child = subprocess.Popen(["prometheus", "--config.file=" + folder + "/prometheus.yml", "--storage.tsdb.path=" + folder + "/data",
                                      "--web.listen-address=127.0.0.1:%d" % port], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

            def asked(query):
                try:
                    with opener.open("http://127.0.0.1:%d/api/v1/query?query=%s" % (port, urllib.parse.quote(query)), timeout=60) as answer:
                        return json.load(answer)["data"]["result"]
                except OSError:
                    return []

            try:
                found = eventually(lambda: len({row["metric"].get("slurm_job") for row in asked("gpucache_limit_bytes")} & {"7", "8"}) == 2)
                log.seek(0)
                tally.check(found, "scrape: Prometheus has both machines", log.read()[-2000:])
                rows = [row for row in asked("gpucache_limit_bytes") if row["metric"].get("slurm_job") in ("7", "8")]  # no rows of other tests
                tally.check({row["value"][1] for row in rows} == {str(1 << 30)} and len({row["metric"]["instance"] for row in rows}) == 2,
                            "scrape: Prometheus has the limits", rows)
                tally.check(eventually(lambda: len(asked('gpucache:used_bytes{slurm_job=~"[78]"}')) == 2), "scrape: the rule", asked("gpucache:used_bytes"))
            finally:
                child.terminate()
                child.wait()
    for one in servers + programs:
        one.end()


def main():
    answers()
    places()
    dashboard()
    prometheus()


tally.run(main)
