"""The papers of docs/references.bib, which \\cite in headers and pages name by their keys."""
import functools, pathlib, re

LETTERS = {r"{\'o}": "ó", r"{\'e}": "é", r"{\L}": "Ł", r"{\c c}": "ç", r"{\c{c}}": "ç", r"\&": "&"}
ROOT = pathlib.Path(__file__).resolve().parents[2]


@functools.cache
def entries():
    """Each key with its fields, in the order of the file."""
    text = (ROOT / "docs/references.bib").read_text()
    for written, letter in LETTERS.items():
        text = text.replace(written, letter)
    found = {}
    for entry in re.split(r"^@\w+\{", text, flags=re.M)[1:]:
        key, body = entry.split(",", 1)
        fields = re.findall(r"(\w+) = \{((?:[^{}]|\{[^{}]*\})*)\}", body)
        found[key.strip()] = {name: re.sub(r"[{}]", "", value) for name, value in fields}
    return found


def authors(key):
    """Family names of the authors."""
    return [name.split(",")[0].strip() for name in entries()[key]["author"].split(" and ")]


def short_name(key):
    """"Vaswani et al. 2017"."""
    names = authors(key)
    who = names[0] if len(names) == 1 else " and ".join(names) if len(names) == 2 else f"{names[0]} et al."
    return f"{who} {entries()[key]['year']}"


def page():
    """The list of all papers in Markdown, each with its key as its anchor."""
    lines = ["# Papers", "", "The papers that headers and pages cite.", ""]
    for key in sorted(entries(), key=lambda k: (authors(k)[0].lower(), entries()[k]["year"])):
        fields = entries()[key]
        where = ", ".join(fields[name] for name in ("booktitle", "journal", "institution") if name in fields)
        end = [part for part in (where, fields["year"], fields.get("note", "")) if part]
        lines.append(f'- <a id="{key}"></a>{fields["author"].replace(" and ", "; ")}: *{fields["title"]}*. {", ".join(end)}.')
    return "\n".join(lines) + "\n"
