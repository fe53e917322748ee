#!/usr/bin/env python3
"""Runs the lines of cmake/package/Dockerfile without Docker, and the program that they leave.

  tests/long/dockerfile.py FOLDER [NAME=VALUE]   each stage is a Debian in FOLDER, left for a look; a
                                                 check that was cut short goes on there; NAME=VALUE is a
                                                 --build-arg, as PRESET=dev
  tests/long/dockerfile.py --self-test           proves that the lines are read as they should be

FROM becomes a Debian of debootstrap, RUN a shell in it (chroot), COPY a copy without what .dockerignore names. Other
instructions than those of the file are an error. Needs root and the package debootstrap; says why and ends with 77
where it cannot run. Takes the mirror of this machine. The build takes as long as that of the preset release.
"""
import fnmatch, glob, json, os, pathlib, re, shlex, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "cmake/package/Dockerfile"
BASE = "debian:bookworm"
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
               "DEBIAN_FRONTEND": "noninteractive"}


def instructions(text):
    """The lines of a Dockerfile as pairs of an instruction and the rest, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


class Stage:
    """A Debian in a folder, with the mounts that its programs need while it is open."""

    def __init__(self, folder):
        self.folder, self.workdir, self.arguments = folder, "/", {}
        shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")
        for name in ("proc", "dev"):
            subprocess.run(["mount", "--bind", f"/{name}", str(folder / name)], check=True)

    def close(self):
        for name in ("proc", "dev"):
            subprocess.run(["umount", str(self.folder / name)], check=False)

    def inside(self, words):
        """Runs a command in it, in its working folder; its output is ours."""
        script = f"cd {shlex.quote(self.workdir)} && exec {shlex.join(words)}"
        print("+", shlex.join(words)[:150], flush=True)
        subprocess.run(["chroot", str(self.folder), "/bin/sh", "-c", script], env={**ENVIRONMENT, **self.arguments}, check=True)

    def place(self, name):
        """The path outside of a path inside."""
        return self.folder / os.path.join(self.workdir, name).lstrip("/")


def ignored(folder, names):
    """What COPY leaves out: what .dockerignore names at the root of the repository."""
    patterns = (ROOT / ".dockerignore").read_text().split()
    here = pathlib.Path(folder).resolve() == ROOT
    return {name for name in names if here and any(fnmatch.fnmatch(name, p) for p in patterns)}


def copy(stages, stage, rest):
    words = rest.split()
    source = ROOT
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].folder
    *names, target = words
    for name in names:
        found = sorted(glob.glob(str(source / name.lstrip("/"))))
        if not found:
            sys.exit(f"COPY {rest}: there is no {name}")
        for path in map(pathlib.Path, found):
            to = stage.place(target)
            if path.is_dir():
                shutil.copytree(path, to, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                to.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to)


def run_file(text, folder, make_stage, given):
    """Runs the instructions with the build arguments `given`; returns the stages, and the words of ENTRYPOINT and CMD."""
    stages, stage, entry, command = {}, None, [], []
    for name, rest in instructions(text):
        if name == "FROM":
            words = rest.split()
            if words[0] != BASE:
                sys.exit(f"FROM {rest}: expected {BASE}")
            stage = make_stage(folder / f"stage-{len(stages) + 1}")
            stages[words[2] if len(words) == 3 else "last"] = stage
        elif name == "ARG":
            key, value = rest.split("=", 1)
            stage.arguments[key] = given.get(key, value)
        elif name == "WORKDIR":
            stage.workdir = rest
            stage.place("").mkdir(parents=True, exist_ok=True)
        elif name == "COPY":
            copy(stages, stage, rest)
        elif name == "RUN":
            stage.inside(["/bin/sh", "-c", rest])
        elif name in ("ENTRYPOINT", "CMD"):
            entry, command = (json.loads(rest), command) if name == "ENTRYPOINT" else (entry, json.loads(rest))
        else:
            sys.exit(f"{name} {rest}: this check does not know {name}")
    return stages, entry, command


def self_test():
    class Recorded:
        def __init__(self, folder):
            folder.mkdir()
            self.folder, self.workdir, self.arguments, self.ran = folder, "/", {}, []

        def inside(self, words):
            self.ran.append(words[-1])

        place = Stage.place

    text = ("# about\nFROM debian:bookworm AS one\nARG A=1\nARG B=2\nWORKDIR /src\nCOPY scripts/common.sh scripts/\nRUN a && \\\n    b\n"
            'FROM debian:bookworm\nCOPY --from=one /src/scripts/*.sh /tmp/\nENTRYPOINT ["x"]\nCMD ["y"]\n')
    with tempfile.TemporaryDirectory() as folder:
        stages, entry, command = run_file(text, pathlib.Path(folder), Recorded, {"B": "3"})
        assert stages["one"].arguments == {"A": "1", "B": "3"}, stages["one"].arguments
        assert stages["one"].ran == ["a && b"], stages["one"].ran
        assert (stages["last"].folder / "tmp/common.sh").read_text() == (ROOT / "scripts/common.sh").read_text()
        assert entry + command == ["x", "y"]
    assert ignored(ROOT, ["app", "build", "build-x", "runs"]) == {"build", "build-x", "runs"}
    assert not ignored(ROOT / "app", ["runs"])
    for wrong in ("FROM alpine\n", "FROM debian:bookworm\nHEALTHCHECK x\n", "FROM debian:bookworm\nCOPY none /tmp/\n"):
        with tempfile.TemporaryDirectory() as folder:
            try:
                run_file(wrong, pathlib.Path(folder), Recorded, {})
            except SystemExit:
                continue
            sys.exit(f"let through: {wrong}")
    run_names = {name for name, _ in instructions(FILE.read_text())}
    assert run_names <= {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "ENTRYPOINT", "CMD"}, run_names
    print("the lines of Dockerfiles are read as they should be")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) < 2 or any("=" not in word for word in sys.argv[2:]):
        sys.exit(__doc__)
    given = dict(word.split("=", 1) for word in sys.argv[2:])
    folder = pathlib.Path(sys.argv[1]).resolve()
    base = folder / "base"
    if folder.exists() and not (base / "etc/debian_version").exists():
        sys.exit(f"{folder} exists; expected a folder that does not, or one of this check")
    for missing in (name for name in ("debootstrap", "chroot") if shutil.which(name) is None):
        print(f"skipped: there is no {missing}")
        sys.exit(77)
    if os.geteuid() != 0:
        print("skipped: debootstrap and chroot need root")
        sys.exit(77)
    if not folder.exists():
        mirror = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Codename: bookworm", "Created-By: Packages"],
                                capture_output=True, text=True, check=True).stdout.split()[0]
        made = folder.with_name(folder.name + ".part")
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(made), mirror], check=True, stdout=subprocess.DEVNULL)
        folder.mkdir(parents=True)
        made.rename(base)
    opened = []

    def make_stage(path):
        if not path.exists():
            part = path.with_suffix(".part")  # what an interruption leaves is no stage
            shutil.rmtree(part, ignore_errors=True)
            subprocess.run(["cp", "-a", str(base), str(part)], check=True)
            part.rename(path)
        opened.append(Stage(path))
        return opened[-1]

    try:
        stages, entry, command = run_file(FILE.read_text(), folder, make_stage, given)
        last = stages["last"]
        shutil.copy(ROOT / "data/samples/tinyshakespeare.txt.gz", last.place("text.gz"))
        last.inside(entry + command)
        last.inside(entry + ["--version"])
        shutil.rmtree(last.place("run"), ignore_errors=True)
        last.inside(entry + ["train", "--model", "local_transformer", "--data", "bytes=text.gz", "--steps", "20", "--out", "run"])
        last.inside(entry + ["generate", "--out", "run", "--prompt", "ROMEO", "--tokens", "20"])
        if not last.place("run/pictures/loss.png").exists():
            sys.exit("the run left no picture")
    finally:
        for stage in opened:
            stage.close()
    print("the lines of the Dockerfile work, and the program that they leave trains")


if __name__ == "__main__":
    main()
