"""The text that all nodes learn from and are judged on."""

from __future__ import annotations

import dataclasses

import pytest
from blake3 import blake3

from demoloco.data.freeze import is_held_out
from demoloco.errors import ConfigError
from demoloco.task import corpus


def test_the_corpus_is_the_same_bytes_everywhere() -> None:
    train, held_out = corpus.load()
    assert (len(train), len(held_out)) == (9_391_524, 146_769)
    digest = blake3(train.tobytes() + held_out.tobytes()).hexdigest()
    assert digest == "0575df757534bde2ba2927521757883a49c69de16dbe4364e116d181c3311411"


def test_the_contents_name_every_byte() -> None:
    contents = corpus.contents()
    text = b"".join(part.tobytes() for part in corpus.load())
    for name, size, digest in contents.files:
        assert blake3(text[:size]).hexdigest() == digest, name
        text = text[size:]
    assert text == b""


def test_no_held_out_file_is_in_the_training_text() -> None:
    contents = corpus.contents()
    train, held_out = (part.tobytes() for part in corpus.load())
    held_out_files = [file for file in contents.files if file[0] in contents.held_out]
    assert len(held_out_files) == len(contents.held_out) > 10
    for name, size, _ in held_out_files:
        assert held_out[:size] not in train, name
        held_out = held_out[size:]
    assert held_out == b""


def test_a_file_is_held_out_by_its_name_alone() -> None:
    contents = corpus.contents()
    assert {name for name, _, _ in contents.files if is_held_out(name)} == set(contents.held_out)


def test_the_text_is_read_only() -> None:
    train, _ = corpus.load()
    with pytest.raises(ValueError, match="read-only"):
        train[0] = 0


def test_a_damaged_corpus_is_refused() -> None:
    wanted = dataclasses.replace(corpus.contents(), size=3, train_size=2)
    with pytest.raises(ConfigError, match=r"damaged.*\nfix: install"):
        corpus._split(b"abc", wanted)
