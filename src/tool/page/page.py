#!/usr/bin/env python3
"""page.py page.html page.css SCRIPT.js... OUTPUT: makes the header with the texts of gpucache report --html.

The scripts become one. The page's Content-Security-Policy names the hashes of script and style: the browser runs no other
script, whatever a report contains.
"""
import base64
import hashlib
import sys


def literal(name, text):
    lines = text.replace("\\", "\\\\").replace('"', '\\"').replace("??", "?\\?").split("\n")  # ?? may begin a trigraph
    return "static const char %s[] =\n    \"%s\";\n" % (name, "\\n\"\n    \"".join(lines))


def digest(text):
    return "'sha256-%s'" % base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def main():
    page, style, *scripts, output = sys.argv[1:]
    texts = []
    for name in (page, style, *scripts):
        with open(name, encoding="utf-8") as file:
            texts.append(file.read())
    page, style, script = texts[0], "\n" + texts[1], "\n\"use strict\";\n" + "".join(texts[2:])
    for mark, text in (("SCRIPT-HASH", digest(script)), ("STYLE-HASH", digest(style)), ("STYLE", style), ("SCRIPT", script)):
        page = page.replace("@%s@" % mark, text)
    head, tail = page.split("@DATA@")
    beginning, head = head.split("@BEGINNING-ENDS@")
    with open(output, "w", encoding="utf-8") as out:
        out.write("/* Made by tool/page/page.py. */\n")
        out.write(literal("html_beginning", beginning) + literal("html_head", head) + literal("html_tail", tail))


main()
