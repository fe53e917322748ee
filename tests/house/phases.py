#!/usr/bin/env python3
"""phases.py ROOT: which turns of a benchmark count, and what is read from the peers' libraries; nothing is timed."""
import os
import sys
import unittest

ROOT = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else os.getcwd()
sys.path.insert(0, os.path.join(ROOT, "bench", "peers"))
sys.dont_write_bytecode = True

import instruction_sets  # noqa: E402
import phases  # noqa: E402
from phases import Phases, Turn  # noqa: E402


class Machine:
    """A machine whose probes are given, the last of them for ever, and contestants that note their turns."""

    def __init__(self, *probes):
        self.probes = list(probes)
        self.taken = []

    def probe(self, threads):
        return self.probes.pop(0) if len(self.probes) > 1 else self.probes[0]

    def take(self, label):
        self.taken.append(label)
        return len(self.taken)

    def turns(self, labels="ab", rounds=2, most=3, best=0.0):
        session = Phases(self.probe)
        session.note(best, 1)
        return session, session.take_turns(list(labels), self.take, rounds, most, 1)


class Choice(unittest.TestCase):
    def test_fast_turns_count_alone(self):
        turns = [Turn(1, 80.0), Turn(2, 90.0), Turn(3, 100.0)]
        self.assertEqual(phases.that_count(turns, 100.0), (turns[1:], "fast"))

    def test_slow_turns_count_where_there_are_no_others(self):
        turns = [Turn(1, 80.0), Turn(2, 70.0)]
        self.assertEqual(phases.that_count(turns, 100.0), (turns, "slow"))

    def test_what_is_repeated(self):
        turns = {"a": [Turn(1, 100.0), Turn(2, 10.0)], "b": [Turn(1, 100.0), Turn(2, 95.0)], "c": [Turn(1, 10.0)]}
        repeated = {"a": 0, "b": 0, "c": 4}
        self.assertEqual(phases.to_repeat(turns, 100.0, 2, repeated, 4), ["a"])
        self.assertEqual(phases.to_repeat(turns, 100.0, 2, repeated, 5), ["a", "c"])
        self.assertEqual(phases.to_repeat(turns, 100.0, 2, repeated, 0), [])

    def test_one_slow_contestant_makes_the_outcome_slow(self):
        turns = {"a": [Turn(1, 100.0)], "b": [Turn(2, 89.0)]}
        outcome = phases.outcome_of(turns, 100.0, [100.0, 89.0], {"a": 0, "b": 2})
        self.assertEqual((outcome.phase, outcome.repeated, outcome.turn_probe), ("slow", 2, 89.0))

    def test_what_counts_for_means(self):
        result = {"steady": True, "phase": "fast", "turn_probe": 90.0}
        self.assertTrue(phases.counts(result, 100.0))
        self.assertFalse(phases.counts(result, 101.0))  # a later probe of the session was better
        self.assertFalse(phases.counts({**result, "steady": False}, 100.0))
        self.assertFalse(phases.counts({**result, "phase": "slow"}, 100.0))

    def test_marks(self):
        self.assertEqual(phases.marks({"steady": True, "phase": "fast"}), "")
        self.assertEqual(phases.marks({"steady": False, "phase": "slow"}), "  UNSTEADY  SLOW PHASE")


class Turns(unittest.TestCase):
    def test_a_fast_machine_repeats_nothing(self):
        machine = Machine(100.0)
        session, outcome = machine.turns()
        self.assertEqual(machine.taken, ["a", "b", "b", "a"])  # the order rotates
        self.assertEqual((outcome.phase, outcome.repeated, len(outcome.probes)), ("fast", 0, 5))
        self.assertEqual([turn.answer for turn in outcome.turns["a"]], [1, 4])
        fields = session.fields(outcome, 1)
        self.assertEqual((fields["phase"], fields["loading_peak"], fields["repeated_turns"]), ("fast", 100.0, 0))
        self.assertEqual(fields["turns"], {"a": 2, "b": 2})

    def test_the_lower_of_both_probes_decides(self):
        machine = Machine(100.0, 50.0, 100.0)  # before a, between a and b, and then
        _, outcome = machine.turns(rounds=1)
        self.assertEqual(machine.taken, ["a", "b", "a", "b"])
        self.assertEqual((outcome.phase, outcome.repeated, outcome.turn_probe), ("fast", 2, 100.0))
        self.assertEqual([turn.answer for turn in outcome.turns["a"]], [3])

    def test_a_machine_that_stays_slow_is_marked_after_so_many_repetitions(self):
        machine = Machine(50.0)
        session, outcome = machine.turns(rounds=1, most=2, best=100.0)
        self.assertEqual(machine.taken, ["a", "b"] + ["a", "b"] * 2)
        self.assertEqual((outcome.phase, outcome.repeated), ("slow", 4))
        fields = session.fields(outcome, 1)
        self.assertEqual((fields["loading_peak"], fields["probe_lowest"], fields["probe_highest"]), (100.0, 50.0, 50.0))

    def test_a_repetition_waits_for_the_fast_phase(self):
        machine = Machine(*[50.0] * 6, 100.0)
        _, outcome = machine.turns(labels="a", rounds=1, most=1, best=100.0)
        self.assertEqual((machine.taken, outcome.phase), (["a", "a"], "fast"))
        self.assertEqual(outcome.probes.count(50.0), 6)

    def test_a_better_probe_later_makes_earlier_turns_slow(self):
        machine = Machine(60.0, 60.0, 100.0)
        _, outcome = machine.turns(labels="a", rounds=2, most=2)
        self.assertEqual([turn.answer for turn in outcome.turns["a"]], [3, 4])
        self.assertEqual((outcome.phase, outcome.repeated), ("fast", 2))

    def test_the_best_probe_is_that_of_as_many_threads(self):
        session = Phases(lambda threads: 100.0 * threads)
        session.settle(2)
        outcome = session.take_turns(["a"], lambda label: 1, 1, 1, 1)
        self.assertEqual((outcome.phase, session.best), ("fast", {1: 100.0, 2: 200.0}))


ONEDNN = """onednn_verbose,v1,info,oneDNN v3.13.3 (commit abc)
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:1
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0,,32x32,0.005
onednn_verbose,v1,primitive,exec,cpu,inner_product,brg_matmul:avx512_core,forward_inference,src:f32,,mb32,0.02
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16,,32x32:32x32,0.02
"""
MKL = """MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture {}, Lnx 2.30GHz lp64
MKL_VERBOSE SGEMM(N,N,32,32,32,0x7f,0x56,32,0x56,32,0x7f,0x56,32) 104.59us CNR:OFF Dyn:0 FastMM:1 TID:0  NThr:1
"""


class Libraries(unittest.TestCase):
    def test_onednn(self):
        self.assertEqual(instruction_sets.parse_onednn(ONEDNN), {
            "isa": "Intel AVX-512 with Intel DL Boost",
            "kernels": ["brg_matmul:avx512_core", "brg_matmul:avx512_core_bf16"]})
        older = "dnnl_verbose,info,cpu,isa:Intel AVX2\ndnnl_verbose,exec,cpu,matmul,gemm:jit,undef,src_f32\n"
        self.assertEqual(instruction_sets.parse_onednn(older), {"isa": "Intel AVX2", "kernels": ["gemm:jit"]})
        self.assertEqual(instruction_sets.parse_onednn("no word\n"), {"isa": None, "kernels": None})

    def test_mkl(self):
        two = MKL.format("Intel(R) Advanced Vector Extensions 2 (Intel(R) AVX2) enabled processors")
        self.assertEqual(instruction_sets.parse_mkl(two), {
            "version": "2024.0 Update 2", "isa": "Advanced Vector Extensions 2 (AVX2)"})
        wide = MKL.format("Intel(R) Advanced Vector Extensions 512 (Intel(R) AVX-512) with support for INT8, BF16")
        self.assertEqual(instruction_sets.parse_mkl(wide)["isa"],
                         "Advanced Vector Extensions 512 (AVX-512) with support for INT8, BF16")
        self.assertEqual(instruction_sets.parse_mkl(""), {"version": None, "isa": None})

    def test_when_openblas_may_be_told_its_kernels(self):
        self.assertTrue(instruction_sets.may_set_coretype("avx512-bf16", {}))
        self.assertTrue(instruction_sets.may_set_coretype("avx512", {"OPENBLAS_CORETYPE": ""}))
        self.assertFalse(instruction_sets.may_set_coretype("avx2", {}))
        self.assertFalse(instruction_sets.may_set_coretype("avx512", {"OPENBLAS_CORETYPE": "Haswell"}))

    def test_the_faster_openblas_competes(self):
        def ask(name, request):
            self.assertEqual(request["shape"], {"m": 512, "n": 512, "k": 512, "layout": "NN"})
            return {"cpu": {"own": 0.5, "other": 0.25}[name]}

        name, rates = instruction_sets.choose_openblas(ask, ["own", "other"])
        self.assertEqual((name, rates), ("other", {"own": 4.0 * 512**3, "other": 8.0 * 512**3}))
        self.assertEqual(instruction_sets.faster({"own": 1.0, "other": 1.0}), "own")

    def test_the_head_line(self):
        head = {"capability": "avx512", "peer_capability": "AVX512",
                "peer_libraries": {"onednn": {"isa": "Intel AVX2"}, "mkl": {"isa": None}, "error": "no such product"},
                "openblas": {"kernel": "SkylakeX", "coretype": "SKYLAKEX", "rates": {"Prescott": 2e9, "SkylakeX": 4e9}}}
        self.assertEqual(instruction_sets.describe(head),
                         "longspan avx512; PyTorch AVX512, oneDNN Intel AVX2, MKL unknown (no such product); OpenBLAS "
                         "SkylakeX (OPENBLAS_CORETYPE=SKYLAKEX; Prescott 2.0 GF/s, SkylakeX 4.0 GF/s)")


if __name__ == "__main__":
    unittest.main()
