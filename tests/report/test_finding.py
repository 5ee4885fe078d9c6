"""A page opens with what came out: who against whom, on what, better or worse."""

from __future__ import annotations

import re
from typing import Any

from rows import make_row

from pskd.workbench.report.finding import list_facts, make_findings
from pskd.workbench.report.page import load_templates
from pskd.workbench.report.summary import compare
from pskd.workbench.study.results import Collection, Row

PLAIN = {"top1_error": [70.0, 69.0, 68.0], "ece": [7.0, 7.2, 7.4], "aurc": [600.0, 605.0, 610.0], "brier": [0.5] * 3}
TAUGHT = {"top1_error": [71.0, 72.5, 69.0], "ece": [5.2, 5.3, 5.5], "aurc": [621.0, 626.5, 631.0], "brier": [0.5] * 3}


ABOUT = {"parameters": 75_002, "epoch": 30, "num_classes": 10}


def row(labels: dict[str, str], method: str, numbers: dict[str, list[float]], seeds: int = 3) -> Row:
    numbers = {name: values[:seeds] for name, values in numbers.items()}
    return make_row(labels, numbers, method, data_name="CIFAR-10", training_samples=300, result=ABOUT)


def told(*rows: Row) -> list[str]:
    found = Collection("", "", rows)
    opening, others, overall = make_findings(found, compare(found))
    sentence: Any = load_templates().get_template("finding.html").module.sentence  # type: ignore[attr-defined]
    texts = [re.sub("<[^>]*>", "", sentence(finding)) for finding in (*opening, *others)]
    return [*(" ".join(text.split()) for text in texts), *overall]


def test_one_sentence_with_what_is_better_first() -> None:
    sentence = (
        "PS-KD against plain cross-entropy (CE), CIFAR-10, 300 images, 3 seeds: ECE 7.20 → 5.33, better;"
        " AURC 605.00 → 626.17, worse; not significant: top-1 error 69.00 → 70.83."
    )
    plain, taught = row({"method": "CE"}, "hard", PLAIN), row({"method": "PS-KD"}, "ps_kd", TAUGHT)
    assert told(plain, taught) == [sentence]
    assert told(taught, plain) == [sentence]  # the baseline is the plain row, wherever it stands
    assert told(row({"method": "hard"}, "hard", PLAIN), row({"method": "ps_kd"}, "ps_kd", TAUGHT)) == [
        sentence.replace(" (CE)", "")
    ]


def test_a_difference_that_is_neither_better_nor_worse_comes_before_what_is_not_significant() -> None:
    plain = row({"method": "CE"}, "hard", {"top1_error": PLAIN["top1_error"], "mine": [1.0, 2.0, 3.0]})
    taught = row({"method": "PS-KD"}, "ps_kd", {"top1_error": TAUGHT["top1_error"], "mine": [5.0, 6.1, 7.2]})
    (sentence,) = told(plain, taught)
    assert sentence.endswith("3 seeds: mine 2 → 6.1, different; not significant: top-1 error 69.00 → 70.83.")


def test_few_seeds_prove_nothing() -> None:
    plain, taught = row({"method": "CE"}, "hard", PLAIN, 2), row({"method": "PS-KD"}, "ps_kd", TAUGHT, 2)
    (sentence,) = told(plain, taught)
    assert sentence.endswith("2 seeds: too few to call a difference significant.")
    assert "better" not in sentence
    assert "worse" not in sentence


def test_a_study_that_is_under_way_compares_the_seeds_that_both_have() -> None:
    plain, taught = row({"method": "CE"}, "hard", PLAIN), row({"method": "PS-KD"}, "ps_kd", TAUGHT, 1)
    (sentence,) = told(plain, taught)
    assert "1 seed: top-1 error 70.00 → 71.00; ECE 7.00 → 5.20; AURC 600.00 → 621.00. One seed" in sentence


def test_other_methods_come_after_and_a_row_alone_is_told_by_itself() -> None:
    plain, taught = row({"method": "CE"}, "hard", PLAIN), row({"method": "PS-KD"}, "ps_kd", TAUGHT)
    smoothed = row({"method": "LS"}, "label_smoothing", TAUGHT)
    first, second = told(plain, taught, smoothed)
    assert first.startswith("PS-KD against")
    assert second.startswith("LS against plain cross-entropy (CE)")
    assert told(taught) == [
        "PS-KD, CIFAR-10, 300 images, 3 seeds: top-1 error 70.83 ± 1.76; ECE 5.33 ± 0.15; AURC 626.17 ± 5.01."
    ]


def test_many_groups_are_counted() -> None:
    rows = []
    for epochs in ("10", "30", "100", "300"):
        rows += [
            row({"epochs": epochs, "method.alpha": "0.0"}, "ps_kd", PLAIN),
            row({"epochs": epochs, "method.alpha": "0.8"}, "ps_kd", TAUGHT),
        ]
    *sentences, overall = told(*rows)
    assert len(sentences) == 4
    assert sentences[1].startswith("epochs 30: PS-KD with alpha 0.8 against alpha 0.0, CIFAR-10")
    assert overall == (
        "PS-KD with alpha 0.8 against alpha 0.0 in 4 groups: top-1 error worse in 4; ECE better in 4"
        " (4 significantly); AURC worse in 4 (4 significantly); Brier the same."
    )


def test_facts() -> None:
    found = Collection("", "", [row({"method": "CE"}, "hard", PLAIN)])
    assert list_facts(found) == {
        "data": "CIFAR-10",
        "sizes": "300 training images, 10 classes",
        "network": "resnet8, 75,002 parameters",
        "epochs": "30",
        "seeds": "0 · 1 · 2",
    }
