"""docs/protocol.md says what the machine does: no sentence without a test, no test without one."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "protocol.md"
NUMBER = re.compile(r"\[P(\d+)\]")


def sentences() -> list[int]:
    """The numbers of the document's sentences, in its order."""
    return [int(n) for n in re.findall(r"^- \[P(\d+)\] ", DOCUMENT.read_text(), re.MULTILINE)]


def numbers_of_tests() -> list[int]:
    """The numbers that tests carry in their docstrings."""
    numbers = []
    for path in sorted(HERE.glob("test_protocol_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found = NUMBER.findall(ast.get_docstring(node) or "")
                assert found, f"{path.name}: {node.name} carries no number"
                numbers += [int(n) for n in found]
    return numbers


def test_sentences_are_numbered_in_their_order() -> None:
    assert sentences() == list(range(1, len(sentences()) + 1))
    assert len(sentences()) > 100


def test_every_sentence_has_one_test_and_every_test_a_sentence() -> None:
    assert sorted(numbers_of_tests()) == sentences()


def test_numbers_stand_only_before_sentences() -> None:
    assert NUMBER.findall(DOCUMENT.read_text()) == [str(n) for n in sentences()]


def test_the_document_names_the_bounds_of_the_code() -> None:
    from demoloco.node import ledger
    from demoloco.rounds import chain, decide, facts, open_round, rules, tempo

    text = re.sub(r"\s+", " ", DOCUMENT.read_text())
    for phrase in (
        f"every {decide.ANNOUNCE_SECONDS:.0f} seconds all packets",
        f"{tempo.PATIENCE_SHARE:.0f} times the time that this packet took, or "
        f"{tempo.PATIENCE_SECONDS:.0f} seconds",
        f"at least {tempo.PATIENCE_FLOOR:.0f} seconds after the first",
        f"at least {tempo.GRACE_FLOOR} seconds",
        f"the last {tempo.WINDOW_ROUNDS} rounds",
        f"Fewer than {tempo.MIN_ROUNDS} rounds measure nothing",
        f"{tempo.SPREAD:.0f} deviations beyond the median",
        f"{tempo.TURN_FLOOR:.0f} to {tempo.TURN_CEILING:.0f} seconds, "
        f"{tempo.TURN_UNMEASURED:.0f} while nothing is measured",
        f"after {tempo.PATIENCE_SHARE:.0f} times the time that a quorum usually takes, at least "
        f"{tempo.PATIENCE_SECONDS:.0f} seconds, or "
        f"{tempo.PATIENCE_SHARE * tempo.PATIENCE_SECONDS:.0f} while",
        f"{rules.MAX_NORM_RATIO:.0f} times the median",
        f"up to {facts.MAX_RETRY_SECONDS:.0f} seconds",
        f"Where more than {decide.MANY} others",
        f"the first {decide.ENOUGH} in the line",
        f"{decide.ENOUGH} members have the round",
        f"failed {facts.MAX_TRIES} times",
        f"at most {open_round.MAX_PARENTS} parents, the oldest goes, and {open_round.MAX_OFFERS}",
        f"More than {chain.MAX_REPLAY} rounds behind",
        f"at most {chain.MAX_REPLAY} rounds, and since",
        f"last {ledger.LOG_ROUNDS} rounds, as long as they name no more than {ledger.LOG_PACKETS}",
        f"those of the last {chain.KEEP_ROUNDS} rounds",
        f"aside for {facts.ASIDE_SECONDS:.0f} seconds",
        f"At most {chain.MAX_BESIDE} manifests",
        f"more than {chain.KEEP_ROUNDS} rounds under the head",
        f"The last {facts.MAX_REFUSED} refusals",
    ):
        assert phrase in text


def test_a_swarm_is_large_for_a_leaver_where_words_go_from_mouth_to_mouth() -> None:
    from demoloco.rounds import decide
    from demoloco.swarm.gossip import rumours as gossip

    assert decide.MANY == gossip.DIRECT


def test_lines_of_the_document_are_short() -> None:
    long = [line for line in DOCUMENT.read_text().splitlines() if len(line) > 120]
    assert [line for line in long if not line.startswith("|")] == []
    assert all(a or b for a, b in itertools.pairwise(DOCUMENT.read_text().splitlines()))
