#!/usr/bin/env python3
"""Copies the public headers for Doxygen, with their comments as it reads them.

  docs/site/headers.py TO     writes TO/longspan/core/tensor.h and so on

A comment of a header is plain text: its first sentence says what the name is, lines indented by two or more spaces are
set as they stand (shapes, formulas), \\cite names an entry of docs/references.bib. Everything else that Doxygen would
take for a command or a tag is escaped here.
"""
import pathlib, re, sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import papers

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("core", "autograd", "ops", "nn", "models", "data", "train", "hub")
COMMENT = re.compile(r"^(\s*)///(?!<) ?(.*)$")
TRAILING = re.compile(r"^(.*///<)(.*)$")
SENTENCE = re.compile(r"(?s)(.+?[.:])(?=\s+[A-Z\[(\"`]|\s*$)")


def headers():
    """The headers of an installed copy, as paths from the root."""
    found = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*.h")]
    return sorted(p.relative_to(ROOT) for p in found) + [pathlib.Path("app/program.h")]


def escaped(text):
    """Plain text for Doxygen; citations become links to the list of papers."""
    parts = re.split(r"\\cite (\w+)(?: (?=[:,.;)]))?", text)
    for i in range(0, len(parts), 2):
        plain = re.sub(r"([\\@<>#%&$~])", r"\\\1", parts[i])
        plain = re.sub(r"`([^`]+)`", r"<code>\1</code>", plain)
        parts[i] = re.sub(r"::", r"\\::", plain)
    for i in range(1, len(parts), 2):
        parts[i] = f'<a href="../papers.html#{parts[i]}">{papers.short_name(parts[i])}</a>'
    return "".join(parts)


def block(lines):
    """The comment of one name, without its slashes, as Doxygen's lines."""
    out, prose, fixed = [], [], []

    def end_of_fixed():
        if fixed:
            out.extend(["", "\\verbatim", *fixed, "\\endverbatim", ""])
            fixed.clear()

    def end_of_prose():
        if prose:
            out.append(escaped("\n".join(prose)))
            prose.clear()

    for line in lines:
        if line.startswith("  ") and line.strip():
            end_of_prose()
            fixed.append(line)
        else:
            end_of_fixed()
            prose.append(line)
    end_of_prose()
    end_of_fixed()
    return "\n".join(out).strip("\n")


def with_brief(text):
    """Ends the brief description after the first sentence, or before the first fixed lines."""
    first = re.split(r"\n\s*\n", text, maxsplit=1)[0]
    if first.startswith("\\verbatim"):
        return text
    found = SENTENCE.match(first)
    brief = found[1] if found else first
    return "\\brief " + brief.replace("\n", " ") + "\n\n" + text[len(brief):].strip("\n ")


def converted(text):
    """One header, with its comments in Doxygen's language."""
    out, comment, indent, of_file = [], [], "", ""
    for line in text.splitlines() + [""]:
        # Without the namespace that all share, functions are described beside the header that declares them.
        line = re.sub(r"^(namespace longspan \{|\}  // namespace longspan)$", "", line)
        line = line.replace("namespace longspan::", "namespace ")
        found = COMMENT.match(line)
        if found:
            indent = found[1]
            comment.append(found[2])
            continue
        if comment:
            rows = [indent + "/** " + with_brief(block(comment)).replace("*/", "* /") + " */"]
            comment = []
            if not line:
                of_file = "\n" + "\n".join(rows)  # about what the header holds
            else:
                out.extend(rows)
        trailing = TRAILING.match(line)
        out.append(trailing[1] + escaped(trailing[2]) if trailing else line)
    return "\n".join(out).replace("#pragma once", "/// \\file" + of_file, 1)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: docs/site/headers.py TO")
    to = pathlib.Path(sys.argv[1]) / "longspan"
    for header in headers():
        (to / header).parent.mkdir(parents=True, exist_ok=True)
        (to / header).write_text(converted((ROOT / header).read_text()))


if __name__ == "__main__":
    main()
