"""`weft conform zoo` judges families in children, and makes a page of its result files."""

from __future__ import annotations

import json

import pytest

from weft.tools.pages.zoo_page import Machine, page_text

from .conftest import last_json

RIGHT = {"ok": True, "said": "", "model": "LlamaForCausalLM", "seconds": 1.0}
VERDICT = {"status": "right", "graphs": 1, "backend_seconds": 0.4, "speeds": {"weft": 2.0}}


def document(machine: str = "x86-64", **checks: dict) -> dict:
    head = {"date": "2026-01-01", "commit": "abc", "suite": "zoo", "machine": machine, "versions": {"torch": "2.13"}}
    return {**head, "checks": checks}


def machine_with(**checks: dict) -> Machine:
    machine = Machine("x86-64")
    machine.add(document(**checks))
    return machine


def test_a_page_has_a_mark_for_each_mode_and_type():
    wrong = {"status": "wrong", "reason": "outputs ['logits']: error 1e-2", "left": ["aten.histc.default"], "again": 2}
    slow = {**VERDICT, "backend_seconds": 12.5, "graphs": 2}
    text = page_text(
        [
            machine_with(
                **{
                    "family llama float32": {**RIGHT, "inference": VERDICT, "training": VERDICT},
                    "family llama bfloat16": {**RIGHT, "ok": False, "inference": VERDICT, "training": wrong},
                    "family swin float32": {**RIGHT, "inference": VERDICT, "training": slow},
                    "family bark float32": {"ok": True, "said": "", "no_config": "too | large", "seconds": 1.0},
                }
            )
        ]
    )
    assert "| llama | LlamaForCausalLM | ✓✓ ✓✗ |" in text
    assert "- llama in bf16 (x86-64): training: outputs ['logits']: error 1e-2" in text
    assert "- `aten.histc.default`: llama" in text and "training (x86-64): 2 graphs" in text
    assert "- swin in f32, training (x86-64): 12 s for 2 graphs" in text
    assert "- bark: too \\| large" in text and "| bark |" not in text
    assert "| x86-64 | f32 | 3 | 1 | 2 | 2 (100.0%) | 2.00 |" in text


def test_the_newest_file_of_a_machine_counts(weft, tmp_path):
    for day, ok in (("01", False), ("02", True)):
        record = {**RIGHT, "ok": ok, "inference": VERDICT, "training": VERDICT, "said": "" if ok else "boom"}
        content = {**document(**{"family llama float32": record}), "date": f"2026-01-{day}"}
        (tmp_path / f"2026-01-{day}-zoo.json").write_text(json.dumps(content))
    page = tmp_path / "zoo.md"
    result = weft("conform", "zoo", "--into", str(page), "--results", str(tmp_path), "--json")
    assert result.exit_code == 0 and last_json(result)["machines"] == ["x86-64"]
    assert "boom" not in page.read_text() and "| llama | LlamaForCausalLM | ✓✓ |" in page.read_text()


def test_a_folder_without_results_is_an_error(weft, tmp_path):
    result = weft("conform", "zoo", "--into", str(tmp_path / "zoo.md"), "--results", str(tmp_path))
    assert result.exit_code == 2 and "no result files" in result.stderr


def test_an_unknown_family_is_an_error(weft, tmp_path):
    pytest.importorskip("transformers")
    result = weft("conform", "zoo", "llamma", "--reports", str(tmp_path))
    assert result.exit_code == 2 and "no family is called llamma" in result.stderr


@pytest.mark.slow
def test_a_family_is_judged_in_a_child_and_kept_in_the_journal(weft, tmp_path):
    pytest.importorskip("transformers")
    output = tmp_path / "zoo.json"
    asked = ["conform", "zoo", "bert", "--dtype", "float32", "--no-speed", "--reports", str(tmp_path), "--jobs", "1"]
    figures = last_json(weft(*asked, "--output", str(output), "--json"))
    assert figures["ok"] and figures["right"] == figures["ran"] == 1
    again = last_json(weft(*asked, "--resume", "--json"))
    assert again["right"] == 1
    kept = json.loads(output.read_text())
    assert kept["suite"] == "zoo" and kept["checks"]["family bert float32"]["training"]["graphs"] == 2


def test_a_result_file_that_was_cut_off_is_named(weft, tmp_path):
    (tmp_path / "2026-01-01-zoo.json").write_text("")
    result = weft("conform", "zoo", "--into", str(tmp_path / "zoo.md"), "--results", str(tmp_path), "--json")
    assert result.exit_code == 2 and "2026-01-01-zoo.json is no result file" in last_json(result)["message"]
