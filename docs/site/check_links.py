#!/usr/bin/env python3
"""Walks a folder of HTML pages and finds links that lead nowhere.

  docs/site/check_links.py FOLDER
  docs/site/check_links.py --self-test     proves that it finds what it should

Every link inside the folder leads to a file, and to an id of it where it names one. Scripts, styles, fonts and pictures
are files of the folder too: a page loads nothing from elsewhere. Links for readers may lead to other sites.
"""
import functools, html, pathlib, re, sys, tempfile, urllib.parse

TAG = re.compile(r"<(a|link|script|img|iframe|source|area)\b([^>]*)>", re.I)
WHERE = re.compile(r"\b(?:href|src)=\"([^\"]*)\"|\b(?:href|src)='([^']*)'", re.I)
NAME = re.compile(r"\b(?:id|name)=[\"']([^\"']+)[\"']")
# In the lists of Doxygen's tree and search; their places are not asked for, as values of enumerations have none.
LISTED = re.compile(r"[\"']((?:\.\./)*[A-Za-z0-9_.-]+\.html)(?:#\w+)?[\"']")
LOADED = re.compile(r"@import\s+[\"']?(https?:)?//|url\(\s*[\"']?(https?:)?//", re.I)


@functools.cache
def text_of(path):
    """A page without what scripts write later."""
    return re.sub(r"(?s)(<script\b[^>]*>).*?</script>|<!--.*?-->", r"\1", path.read_text(errors="replace"))


@functools.cache
def names_of(path):
    return {html.unescape(name) for name in NAME.findall(text_of(path))}


def wrong(page, tag, link):
    """What is wrong with a link of a page, or nothing."""
    if tag == "link" and re.match(r"https?:", link):
        return "loads from elsewhere"
    parts = urllib.parse.urlsplit(html.unescape(link))
    if parts.scheme or parts.netloc:
        outside = tag != "a" and parts.scheme != "data" or parts.netloc and not parts.scheme
        return "loads from elsewhere" if outside else ""
    target = page if not parts.path else page.parent / urllib.parse.unquote(parts.path)
    if target.is_dir():
        target = target / "index.html"
    if not target.exists():
        return "no such file"
    anchor = urllib.parse.unquote(parts.fragment)
    if anchor and target.suffix == ".html" and anchor not in names_of(target.resolve()):
        return "no such place"
    return ""


def check(folder):
    """Prints what is wrong and returns its number, and that of links."""
    bad = links = 0
    for page in sorted(folder.rglob("*.html")):
        page = page.resolve()
        for tag, attributes in TAG.findall(text_of(page)):
            for link in (a or b for a, b in WHERE.findall(attributes)):
                if link.startswith("javascript:"):
                    continue
                links += 1
                why = wrong(page, tag.lower(), link)
                if why:
                    print(f"{page.relative_to(folder.resolve())}: {link}: {why}")
                    bad += 1
    for script in sorted(folder.rglob("*.js")):
        if script.name.startswith("navtreeindex"):
            continue  # what is shown for a page, where it exists
        for link in LISTED.findall(script.read_text(errors="replace")):
            links += 1
            if not (script.parent / link).exists():
                print(f"{script.relative_to(folder)}: {link}: no such file")
                bad += 1
    for style in sorted(folder.rglob("*.css")):
        if LOADED.search(style.read_text(errors="replace")):
            print(f"{style.relative_to(folder)}: loads from elsewhere")
            bad += 1
    return bad, links


def self_test():
    good = '<h2 id="here">x</h2><a href="b.html#here">x</a><a href="https://example.org/">x</a><img src="p.png"/>'
    cases = {'<a href="c.html">x</a>': 1, '<a href="b.html#there">x</a>': 1, '<a href="#there">x</a>': 1,
             '<script src="https://example.org/a.js"></script>': 1, "<link href='//example.org/a.css'>": 1,
             '<img src="q.png">': 1, good: 0, '<!-- <a href="c.html">x</a> -->': 0}
    for text, expected in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "p.png").write_bytes(b"")
            (folder / "b.html").write_text(good)
            (folder / "a.html").write_text(text)
            text_of.cache_clear()
            names_of.cache_clear()
            if check(folder)[0] != expected:
                sys.exit(f"expected {expected} wrong links in {text}")
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "a.css").write_text("@import url(https://example.org/font.css);")
        (pathlib.Path(folder) / "a.js").write_text('var a = [["x", "b.html#x", null]];')
        if check(pathlib.Path(folder))[0] != 2:
            sys.exit("expected a wrong style and a wrong list")
    print("the check of links finds what it should")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1]).is_dir():
        sys.exit("usage: docs/site/check_links.py FOLDER, or --self-test")
    bad, links = check(pathlib.Path(sys.argv[1]))
    if bad or not links:
        sys.exit(f"{bad} of {links} links are wrong")
    print(f"{links} links lead somewhere")


if __name__ == "__main__":
    main()
