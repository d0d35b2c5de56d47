"""Parts that belong together, and those that do not: one sentence for each reason."""

import json
import re
from pathlib import Path

import pytest

from joma.host.errors import BadInput
from joma.scale.parts import FILE, Part, belonging_together, find_parts, read_part
from joma.scale.shards import Shard

WORK = ["step 0 (step0)", "step 1 (step1)", "step 2 (step2)", "step 3 (step3)", "step 4 (step4)"]
OPTIONS = {"source": "runs/a", "measures": ["alpha"]}
VERSIONS = {"joma": "1", "commit": "abc", "torch": "2", "numpy": "2", "sympy": "1", "python": "3.11"}


def part(folder, number, of=3, *, options=OPTIONS, work=WORK, kind="scan", done=True, versions=VERSIONS):
    shard = Shard(number, of)
    begun = Part(folder / f"part{number}", kind, shard, options, work, shard.dealt(work), versions=versions)
    begun.begin()
    return begun.finish({"n": number}) if done else begun


def all_parts(folder):
    return [part(folder, number) for number in (1, 2, 3)]


def refusal(parts) -> str:
    with pytest.raises(BadInput) as error:
        belonging_together(parts)
    said = str(error.value)
    assert "\n" not in said
    return said


def test_parts_of_one_work_come_in_order(tmp_path):
    one, two, three = all_parts(tmp_path)
    assert belonging_together([three, one, two]) == [one, two, three]


def test_a_part_is_read_as_it_was_written(tmp_path):
    written = part(tmp_path, 2)
    assert read_part(written.folder) == written
    assert written.mine == [WORK[1], WORK[4]]


def test_folders_are_those_of_shards_or_hold_them(tmp_path, monkeypatch):
    parts = all_parts(tmp_path)
    assert find_parts([tmp_path]) == parts
    assert find_parts([parts[1].folder, parts[0].folder]) == [parts[1], parts[0]]
    assert find_parts([tmp_path, parts[1].folder]) == parts
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(parts[2].folder)
    same = find_parts([Path("part2"), parts[1].folder, Path("link"), parts[2].folder])
    assert [one.shard.number for one in same] == [2, 3]  # one folder by two names is one shard
    (tmp_path / "link").unlink()
    (tmp_path / "empty").mkdir()
    for folder, said in (("empty", "holds no shard"), ("nothing", "there is no folder")):
        with pytest.raises(BadInput, match=said):
            find_parts([tmp_path / folder])


@pytest.mark.parametrize("name", ["joma", "commit", "torch", "numpy", "sympy"])
def test_other_versions_are_refused(tmp_path, name):
    other = part(tmp_path, 2, versions={**VERSIONS, name: "9"})
    said = refusal([part(tmp_path, 1), other, part(tmp_path, 3)])
    assert f"was made with {name} {VERSIONS[name]}" in said
    assert "part2 with 9" in said


def test_versions_that_no_number_depends_on_may_differ(tmp_path):
    belonging_together(
        [part(tmp_path, 1), part(tmp_path, 2, versions={**VERSIONS, "python": "3.12"}), part(tmp_path, 3)]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({**OPTIONS, "measures": ["alpha", "coherence"]}, 'part1 was made with measures ["alpha"], '),
        ({**OPTIONS, "root": "ema"}, "part1 was made with root null, "),
        ({"measures": ["alpha"]}, "part1 was made with source runs/a, "),
        ({**OPTIONS, "source": "s" * 500}, "with sss"),
    ],
)
def test_other_options_are_refused_and_named(tmp_path, options, said):
    found = refusal([part(tmp_path, 1), part(tmp_path, 2, options=options), part(tmp_path, 3)])
    assert said in found
    assert len(found.replace(str(tmp_path), "")) < 300


def test_other_work_is_refused(tmp_path):
    longer = [*WORK, "step 5 (step5)", "step 6 (step6)"]
    said = refusal([part(tmp_path, 1), part(tmp_path, 2, work=longer), part(tmp_path, 3)])
    assert re.search(r"part2 lists step 5 \(step5\) and 1 more, \S+part1 does not$", said)
    said = refusal([part(tmp_path, 1), part(tmp_path / "b", 2, work=WORK[1:]), part(tmp_path, 3)])
    assert re.search(r"part1 lists step 0 \(step0\), \S+part2 does not$", said)
    said = refusal([part(tmp_path, 1), part(tmp_path / "c", 2, work=WORK[::-1]), part(tmp_path, 3)])
    assert "order their work differently" in said


def test_another_command_is_refused(tmp_path):
    assert "is of joma scan" in refusal([part(tmp_path, 1), part(tmp_path, 2, kind="verify"), part(tmp_path, 3)])


def test_missing_double_and_unfinished_shards_are_named(tmp_path):
    one, two, three = all_parts(tmp_path)
    assert refusal([one, three]) == "shard 2/3 is missing; merge takes all 3"
    assert refusal([two]) == "shards 1/3, 3/3 are missing; merge takes all 3"
    twin = part(tmp_path / "again", 2)
    assert refusal([one, two, twin, three]) == (
        f"shard 2/3 is there twice: {two.folder} and {twin.folder}; leave one of them out"
    )
    assert "is not finished; give its command again" in refusal([one, part(tmp_path / "b", 2, done=False), three])
    assert "is one of 3 shards" in refusal([one, part(tmp_path / "c", 2, of=4), three])
    many = [part(tmp_path / "many", 1, of=40)]
    assert refusal(many) == "shards 2/40, 3/40, 4/40, 5/40, 6/40 and 34 more are missing; merge takes all 40"


def test_shares_that_leave_something_out_are_refused(tmp_path):
    parts = all_parts(tmp_path)
    content = json.loads((parts[1].folder / FILE).read_text())
    (parts[1].folder / FILE).write_text(json.dumps({**content, "mine": content["mine"][:1]}))
    assert "in no share, or in two" in refusal(find_parts([tmp_path]))


def test_shares_that_have_something_twice_are_refused(tmp_path):
    parts = all_parts(tmp_path)
    content = json.loads((parts[1].folder / FILE).read_text())
    (parts[1].folder / FILE).write_text(json.dumps({**content, "mine": [WORK[0], *content["mine"]]}))
    assert "in no share, or in two" in refusal(find_parts([tmp_path]))


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("other", [{"versions": {**VERSIONS, "torch": "9"}}, {"options": {}}, {"kind": "verify"}])
def test_whichever_part_is_another_one_it_is_refused(tmp_path, at, other):
    parts = all_parts(tmp_path)
    parts[at] = part(tmp_path / "other", at + 1, **other)
    assert str(parts[at].folder) in refusal(parts)


def test_a_folder_holds_one_shard_of_one_work(tmp_path):
    first = part(tmp_path, 1)
    again = Part(first.folder, "scan", first.shard, OPTIONS, WORK, first.mine)
    assert again.begin() == first
    assert not read_part(first.folder).done
    for other in (Part(first.folder, "scan", Shard(2, 3), OPTIONS, WORK, WORK[1:2]),
                  Part(first.folder, "scan", Shard(1, 4), OPTIONS, WORK, WORK[::4]),
                  Part(first.folder, "scan", first.shard, {**OPTIONS, "root": "ema"}, WORK, first.mine),
                  Part(first.folder, "scan", first.shard, OPTIONS, WORK[:-1], first.mine)):  # fmt: skip
        with pytest.raises(BadInput, match="already holds shard 1/3 of other work; "):
            other.begin()
    assert read_part(first.folder).options == OPTIONS


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "null",
        lambda text: text.replace('"work"', '"walk"'),
        lambda text: text.replace('"1/3"', '"7/3"'),
        lambda text: text.replace('"done": true', '"done": 1'),
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace('"step 0 (step0)"', "7"),
        lambda text: text.replace('{\n  "n": 1\n }', "[" * 3000 + "]" * 3000),
        lambda text: text.replace('{\n  "n": 1\n }', '{"n": ' * 200 + "1" + "}" * 200),
        lambda text: "\x00" * 100,
    ],
)
def test_a_damaged_part_is_one_sentence(tmp_path, spoil):
    path = part(tmp_path, 1).folder / FILE
    text = path.read_text()
    assert spoil(text) != text
    path.write_text(spoil(text))
    with pytest.raises(BadInput) as error:
        read_part(path.parent)
    assert re.fullmatch(r"[^\n]+; remove it and give the shard's command again", str(error.value))
    path.unlink()  # as the sentence says: then the folder can be used again
    assert part(tmp_path, 1).done
