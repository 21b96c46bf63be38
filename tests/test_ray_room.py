"""What a cluster lacks for one worker more, in words."""

from __future__ import annotations

from paceline.runtimes.ray_cluster.room import in_words

NODES = [{"CPU": 2.0}, {"CPU": 4.0, "spot": 1.0}, {"GPU": 1.0}]
FREE = {"CPU": 6.0, "spot": 1.0, "GPU": 1.0}


def said(wanted: dict[str, float], free: dict[str, float] = FREE) -> str:
    return in_words(wanted, NODES, free)


def test_nothing_is_said_while_there_is_room() -> None:
    assert said({}) == said({"CPU": 4}) == said({"CPU": 1, "spot": 1, "GPU": 0}) == ""


def test_what_no_node_will_ever_have_is_named() -> None:
    assert said({"CPU": 8}) == "Ray has not placed them: each needs 8 CPU, and no node has more than 4 CPU"
    assert said({"TPU": 1}) == "Ray has not placed them: each needs 1 TPU, and no node has any TPU"
    assert said({"GPU": 1, "CPU": 1}).endswith("each needs 1 GPU and 1 CPU, and no node has all of that")


def test_what_others_have_taken_is_counted() -> None:
    assert said({"CPU": 1}, {"spot": 1.0}).endswith("each needs 1 CPU, and 0 of 6 CPU are free")


def test_a_cluster_without_nodes_has_nothing() -> None:
    assert in_words({"CPU": 1}, [], {}).endswith("no node has any CPU")
