#!/usr/bin/env python3
"""check_trace.py FILE...: checks traces against the Trace Event Format, which trace viewers read.
check_trace.py --self-test: proves that broken ones are refused.

Every begin is closed, slices of a thread nest, times and durations are not negative, threads that
have slices are named, and counters are numbers."""
import collections
import copy
import json
import sys

ROUNDING = 1e-6  # microseconds


def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def problems(trace):
    """Yields what is wrong."""
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list) or not events:
        yield "there is no list of events"
        return
    named, used = set(), set()
    slices, open_slices = collections.defaultdict(list), collections.defaultdict(list)
    for i, e in enumerate(events):
        where = f"event {i}"
        if not isinstance(e, dict) or e.get("ph") not in ("X", "B", "E", "C", "M", "i"):
            yield f"{where} has no known phase"
            continue
        thread = e.get("pid"), e.get("tid")
        if not all(isinstance(part, int) for part in thread):
            yield f"{where} has no process and thread"
            continue
        if e["ph"] != "E" and not (isinstance(e.get("name"), str) and e["name"]):
            yield f"{where} has no name"
        if e["ph"] == "M":
            name = e.get("args", {}).get("name")
            if not isinstance(name, str) or not name:
                yield f"{where} names nothing"
            elif e.get("name") == "thread_name":
                named.add(thread)
            continue
        if not number(e.get("ts")) or e["ts"] < 0:
            yield f"{where} has no time"
            continue
        if e["ph"] == "X":
            used.add(thread)
            if not number(e.get("dur")) or e["dur"] < 0:
                yield f"{where} has no duration"
            else:
                slices[thread].append((e["ts"], e["ts"] + e["dur"], e["name"]))
        elif e["ph"] == "B":
            used.add(thread)
            open_slices[thread].append(e)
        elif e["ph"] == "E":
            if not open_slices[thread]:
                yield f"{where} ends what has not begun"
                continue
            begin = open_slices[thread].pop()
            if e.get("name", begin.get("name")) != begin.get("name"):
                yield f"{where} ends {e['name']}, and {begin.get('name')} is open"
            slices[thread].append((begin["ts"], e["ts"], begin.get("name")))
        elif e["ph"] == "C":
            values = e.get("args")
            if not isinstance(values, dict) or not values or not all(map(number, values.values())):
                yield f"{where} counts no numbers"
    for thread, left in open_slices.items():
        for e in left:
            yield f"{e.get('name')} of thread {thread} is never closed"
    for thread in sorted(used - named):
        yield f"thread {thread} has no name"
    for thread, all_of in slices.items():
        outer = []
        for begin, end, name in sorted(all_of, key=lambda s: (s[0], -s[1])):
            if end < begin:
                yield f"{name} of thread {thread} ends before it begins"
            while outer and outer[-1][1] <= begin + ROUNDING:
                outer.pop()
            if outer and end > outer[-1][1] + ROUNDING:
                yield f"{name} of thread {thread} begins in {outer[-1][2]} and ends after it"
            outer.append((begin, end, name))


def self_test():
    def event(ph, name, **more):
        return dict(ph=ph, name=name, pid=1, tid=0, **more)

    good = {"traceEvents": [
        event("M", "thread_name", args={"name": "main"}),
        event("X", "step", ts=0, dur=10), event("X", "kernel", ts=1, dur=2), event("X", "kernel", ts=3, dur=7),
        event("B", "other", ts=20), event("E", "other", ts=21), event("C", "memory", ts=3, args={"saved": 5})]}
    assert not list(problems(good)), list(problems(good))

    def broken(change, expected):
        bad = copy.deepcopy(good)
        change(bad["traceEvents"])
        found = list(problems(bad))
        assert any(expected in text for text in found), (expected, found)

    broken(lambda e: e.__setitem__(slice(None), []), "no list of events")
    broken(lambda e: e.pop(0), "has no name")
    broken(lambda e: e[1].update(ts=-1), "has no time")
    broken(lambda e: e[1].update(ts="0"), "has no time")
    broken(lambda e: e[1].update(dur=-1), "has no duration")
    broken(lambda e: e[1].pop("dur"), "has no duration")
    broken(lambda e: e[3].update(dur=8), "ends after it")
    broken(lambda e: e.pop(5), "never closed")
    broken(lambda e: e.pop(4), "has not begun")
    broken(lambda e: e[5].update(name="step"), "is open")
    broken(lambda e: e[5].update(ts=19), "ends before it begins")
    broken(lambda e: e[6].update(args={"saved": "5"}), "counts no numbers")
    broken(lambda e: e[6].update(args={}), "counts no numbers")
    broken(lambda e: e[0].update(args={}), "names nothing")
    broken(lambda e: e[1].update(ph="?"), "no known phase")
    broken(lambda e: e[1].pop("tid"), "no process and thread")
    broken(lambda e: e[1].update(name=""), "has no name")
    print("broken traces are refused")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        found = list(problems(trace))
        if found:
            sys.exit(f"{path}: " + "\n  ".join(found[:10]))
        print(f"{path}: {len(trace['traceEvents'])} events")


if __name__ == "__main__":
    main()
