#!/usr/bin/env python3
"""Copies the pages of the repository for MkDocs, with links, pictures and the names of the reference.

  docs/site/pages.py TAGS TO     TAGS: Doxygen's list of names; writes TO/index.md and so on

In the repository a page names another one, or a header, in backquotes; here these names become links. Fails if a page
is in no group of mkdocs.yml, or a picture is missing.
"""
import pathlib, re, shutil, sys, xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import papers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OTHERS = {"README.md": "index.md", "bench/README.md": "bench.md", "bench/results/README.md": "results.md",
          "bench/results/families/README.md": "families.md", "bench/peers/README.md": "peers.md",
          "data/samples/README.md": "bundled-data.md", "tests/long/README.md": "long-checks.md"}


def sources():
    """Each page of the repository with its path in the site."""
    pages = {str(p.relative_to(ROOT)): str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    return {**OTHERS, **dict(sorted(pages.items()))}


def title_of(page):
    first = next(line for line in (ROOT / page).read_text().splitlines() if line.startswith("# "))
    return first[2:].replace("`", "")


class Site:
    def __init__(self, tags, to):
        self.to = to
        self.pages = sources()
        self.headers, self.names = {}, {}
        for compound in xml.etree.ElementTree.parse(tags).getroot():
            if compound.get("kind") == "file":
                self.add_header(compound)
        self.classes = {c.findtext("name"): c.findtext("filename")
                        for c in xml.etree.ElementTree.parse(tags).getroot() if c.get("kind") in ("class", "struct")}
        self.bad = []

    def add_header(self, compound):
        path = (compound.findtext("path") + compound.findtext("name")).split("headers/longspan/")[-1]
        self.headers[path] = compound.findtext("filename")
        names = {}
        for member in compound.findall("member"):
            if member.get("kind") in ("function", "enumeration", "typedef", "variable"):
                names.setdefault(member.findtext("name"), f"{member.findtext('anchorfile')}#{member.findtext('anchor')}")
        self.names[path] = names, [c.text for c in compound.findall("class")]

    def target(self, page, name):
        """The path from the root of the page or header that `page` calls `name`, or nothing."""
        folder = pathlib.PurePosixPath(page).parent
        for candidate in (folder / name, pathlib.PurePosixPath("docs") / name, pathlib.PurePosixPath(name)):
            parts = []
            for part in candidate.parts:
                if part == ".." and parts:
                    parts.pop()
                else:
                    parts.append(part)
            path = "/".join(parts)
            if path in self.pages or path in self.headers:
                return path
        return ""

    def link(self, page, path):
        up = "../" * self.pages[page].count("/")
        return up + (self.pages[path] if path in self.pages else "reference/" + self.headers[path])

    def inline(self, page, text):
        """A line or paragraph outside code, with links."""
        def named(match):
            path = self.target(page, match[1])
            if not path or path == page:
                return match[0]
            words = title_of(path) if path in self.pages else f"`{match[1]}`"
            return f"[{words}]({self.link(page, path)})"

        def linked(match):
            name, anchor = re.match(r"([^#]*)(#.*)?$", match[2]).groups()
            path = self.target(page, name) if name and "://" not in name else ""
            return f"[{match[1]}]({self.link(page, path)}{anchor or ''})" if path else match[0]

        def picture(match):
            return f"![{match[1]}]({self.picture(page, match[2])})"

        text = re.sub(r"!\[([^\]]*)\]\(([^)]+)\)", picture, text)
        text = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)]+)\)", linked, text)
        return re.sub(r"(?<![\[`])`([A-Za-z0-9_./-]+\.(?:md|h))`(?!`)", named, text)

    def picture(self, page, name):
        """Copies a picture that a page shows; returns its path from that page."""
        source = (ROOT / page).parent / name
        if not source.exists():
            self.bad.append(f"{page}: there is no picture {name}")
            return name
        copied = "-".join(source.resolve().relative_to(ROOT).parts)
        (self.to / "pictures").mkdir(exist_ok=True)
        shutil.copy(source, self.to / "pictures" / copied)
        return "../" * self.pages[page].count("/") + "pictures/" + copied

    def converted(self, page):
        """A page in the Markdown of MkDocs."""
        out, fenced, before = [], False, ""
        for line in (ROOT / page).read_text().splitlines():
            if line.startswith("```"):
                fenced = not fenced
            elif re.match(r"<!-- .* -->$", line) and line != "<!-- prints -->":
                continue  # for the tests that run the page; that one keeps what is printed apart from its command
            elif not fenced and not line.startswith("    "):
                starts = re.match(r"(- |\d+\. )", line)
                if starts and before.strip() and not re.match(r"(- |\d+\. |  )", before):
                    out.append("")  # lists stand alone
                line = self.inline(page, line)
            out.append(line)
            before = line
        return "\n".join(out) + "\n"

    def names_page(self):
        """All public names by header, for the search of the pages."""
        lines = ["# All names", "", "Every public name, by the header that declares it.", ""]
        for path, (names, classes) in sorted(self.names.items()):
            if path == "longspan.h" or path.endswith(".dox"):
                continue
            links = [(name, self.classes[name]) for name in classes if name in self.classes] + sorted(names.items())
            lines += [f"## {path}", "", f"[`#include <longspan/{path}>`](reference/{self.headers[path]})", ""]
            lines += [", ".join(f"[`{name}`](reference/{where})" for name, where in links), ""]
        return "\n".join(lines)

    def write(self):
        groups = (ROOT / "docs/site/mkdocs.yml").read_text()
        for page, path in self.pages.items():
            if not re.search(rf"[ :]{re.escape(path)}$", groups, re.M):
                self.bad.append(f"{page}: {path} is in no group of docs/site/mkdocs.yml")
            (self.to / path).parent.mkdir(parents=True, exist_ok=True)
            (self.to / path).write_text(self.converted(page))
        (self.to / "names.md").write_text(self.names_page())
        (self.to / "papers.md").write_text(papers.page())
        if self.bad:
            sys.exit("\n".join(self.bad))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: docs/site/pages.py TAGS TO")
    Site(sys.argv[1], pathlib.Path(sys.argv[2])).write()
