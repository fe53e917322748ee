"""Takes turns of contestants between probes of the machine, and says which turns count.

On some machines loops that load run at two speeds, which alternate within seconds or less, while multiply-adds
on registers alone stay as fast. The loading probe (`loading_probe` of bench_worker, FLOPs per second) tells
the two apart: it runs directly before and after every turn. A turn is slow if the lower of its two probes is
below SLOW of the best probe of the session with as many threads. Only turns that are not slow count, as long
as a contestant has one.
"""

import typing

SLOW = 0.9
PATIENCE = 200  # probes, at most, while waiting for the fast phase: half a second


class Turn(typing.NamedTuple):
    """What a contestant answered, and the lower of the probes before and after, in FLOPs per second."""

    answer: object
    probe: float


class Outcome(typing.NamedTuple):
    """turns: label -> turns that count; phase: "fast", or "slow" if a contestant has slow turns
    only; probes: all of them; repeated: turns taken beyond the rounds; turn_probe: the lowest, over
    the contestants, of the best probe of a turn."""

    turns: dict
    phase: str
    probes: list
    repeated: int
    turn_probe: float


def is_slow(probe, best):
    return probe < SLOW * best


def that_count(turns, best):
    """The turns of fast phases, with "fast"; or all turns, with "slow", if no turn is fast."""
    fast = [turn for turn in turns if not is_slow(turn.probe, best)]
    return (fast, "fast") if fast else (list(turns), "slow")


def to_repeat(turns, best, rounds, repeated, most):
    """The labels that have fewer than `rounds` fast turns and have repeated fewer than `most`."""
    fast = {label: sum(not is_slow(turn.probe, best) for turn in taken) for label, taken in turns.items()}
    return [label for label in turns if fast[label] < rounds and repeated[label] < most]


def outcome_of(turns, best, probes, repeated):
    """The outcome of all turns by label, where the best probe of the session is `best`."""
    chosen = {label: that_count(taken, best) for label, taken in turns.items()}
    phase = "slow" if any(of == "slow" for _, of in chosen.values()) else "fast"
    return Outcome({label: taken for label, (taken, _) in chosen.items()}, phase, probes, sum(repeated.values()),
                   min(max(turn.probe for turn in taken) for taken in turns.values()))


def counts(result, best):
    """Whether a stored result counts for means, now that the best probe of its number of threads is `best`."""
    return result["steady"] and result["phase"] == "fast" and not is_slow(result["turn_probe"], best)


class Phases:
    """The probes of a session. `probe(threads)` returns FLOPs per second; `best` has the best by threads."""

    def __init__(self, probe):
        self.probe = probe
        self.best = {}

    def note(self, flops, threads):
        self.best[threads] = max(self.best.get(threads, 0.0), flops)
        return flops

    def sample(self, threads):
        return self.note(self.probe(threads), threads)

    def settle(self, threads):
        """The best of many probes at the beginning of a session, some of which should meet the fast phase."""
        for _ in range(PATIENCE):
            self.sample(threads)
        return self.best[threads]

    def take_turns(self, labels, take, rounds, most, threads):
        """The outcome of `rounds` turns of each label, which take(label) takes, in an order that rotates, and of
        at most `most` repetitions of each label's slow turns, before which it waits for the fast phase."""
        turns, repeated = {label: [] for label in labels}, dict.fromkeys(labels, 0)
        probes = [self.sample(threads)]

        def one(label):
            answer = take(label)
            probes.append(self.sample(threads))
            turns[label].append(Turn(answer, min(probes[-2:])))

        for n in range(rounds):
            for i in range(len(labels)):
                one(labels[(i + n) % len(labels)])
        while left := to_repeat(turns, self.best[threads], rounds, repeated, most):
            for label in left:
                for _ in range(PATIENCE):
                    if not is_slow(probes[-1], self.best[threads]):
                        break
                    probes.append(self.sample(threads))
                one(label)
                repeated[label] += 1
        return outcome_of(turns, self.best[threads], probes, repeated)

    def fields(self, outcome, threads):
        """The fields of an outcome in a JSON line; rates in FLOPs per second."""
        return {"phase": outcome.phase, "loading_peak": self.best[threads], "probe_lowest": min(outcome.probes),
                "probe_highest": max(outcome.probes), "turn_probe": outcome.turn_probe,
                "repeated_turns": outcome.repeated,
                "turns": {label: len(taken) for label, taken in outcome.turns.items()}}


def marks(result):
    """What a printed line says of a result that does not count."""
    return ("" if result["steady"] else "  UNSTEADY") + ("" if result["phase"] == "fast" else "  SLOW PHASE")
