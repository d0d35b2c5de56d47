"""What `--list` shows: every tensor, and what it was taken for."""

import json

import pytest
import torch
from safetensors.torch import save_file

from joma.scan import open_series
from joma.scan.errors import UnknownNames
from joma.scan.formats.checkpoint import part_of, tensor_of
from joma.scan.result.listing import list_tensors

EXPERTS = {
    "layers.0.mlp.experts.gate_up_proj": torch.randn(3, 24, 8),
    "layers.0.mlp.experts.gate_up_proj_bias": torch.randn(3, 24),
    "layers.0.mlp.experts.down_proj": torch.randn(3, 8, 12),
    "layers.1.self_attn.q_proj.weight": torch.randn(8, 8, dtype=torch.float64),
    "scale": torch.tensor(1.0),
}


def listed(folder, tensors, **options):
    save_file(tensors, folder / "epoch=2-step=7.safetensors")
    return list_tensors(open_series(folder, downloads=folder).places[0], **options)


def test_every_tensor_is_shown_with_what_it_was_taken_for(tmp_path):
    lines = listed(tmp_path, EXPERTS).text().splitlines()
    rows = {line.split()[0]: line for line in lines[: len(EXPERTS) + 1]}
    assert rows.keys() == {"tensor", *EXPERTS}
    words = rows["layers.0.mlp.experts.gate_up_proj"]
    assert words.split(maxsplit=1)[1] == "3 x 24 x 8  float32  mlp_experts and mlp_experts_gate  0      0 to 2"
    assert "(bias)" in rows["layers.0.mlp.experts.gate_up_proj_bias"]
    assert rows["scale"].split()[1:3] == ["number", "float32"]
    assert "float64" in rows["layers.1.self_attn.q_proj.weight"]
    assert "3 of 5 tensors taken" in lines
    assert "mlp_experts covers 1 of 2 layers" in lines
    assert "attention_q covers 1 of 2 layers" in lines


def test_the_same_as_json(tmp_path):
    found = json.loads(json.dumps(listed(tmp_path, EXPERTS).as_json()))
    assert (found["step"], found["epoch"], found["model_type"], found["roots"]) == (7, 2, None, ["."])
    stack = next(entry for entry in found["tensors"] if entry["tensor"].endswith("down_proj"))
    assert stack["shape"] == [3, 8, 12]
    assert stack["taken_for"][2] == {
        "group": "mlp_experts_down",
        "part": "layers.0.mlp.experts.down_proj[2]",
        "layer": 0,
        "expert": 2,
    }
    assert found["coverage"]["mlp_experts"] == {"covered": 1, "layers": 2}


def test_patterns_and_several_models(tmp_path):
    tensors = {f"{root}.h.0.mlp.c_fc.weight": torch.randn(4, 4) for root in ("student", "teacher")}
    whole = listed(tmp_path, tensors)
    assert whole.roots == ("student", "teacher")
    assert all(line.cells()[3] == "not taken" for line in whole.lines)
    assert "choose one as root student" in whole.text()
    one = listed(tmp_path, tensors, root="teacher", patterns={"mine": r"student\..*"})
    assert [line.cells()[3] for line in one.lines] == ["mine", "mlp"]
    with pytest.raises(UnknownNames, match="no weights under 'x'"):
        listed(tmp_path, tensors, root="x")


@pytest.mark.parametrize(("name", "shape", "rows"), [
    ("w[1]", (4, 5), (1, 2)),
    ("w[0:2]", (2, 4, 5), (0, 2)),
    ("w[1:]", (2, 4, 5), (1, 3)),
    ("w[2,1:3]", (2, 5), (2, 3)),
    ("w[2,:,0::2]", (4, 3), (2, 3)),
    ("w[0::2]", (2, 4, 5), (0, 3)),
])  # fmt: skip
def test_parts_are_what_numpy_says(name, shape, rows):
    whole = torch.arange(60).view(3, 4, 5)
    part = part_of(name)
    expected = eval(name, {"w": whole.numpy()})
    assert part.shape((3, 4, 5)) == shape == expected.shape
    assert part.rows(3) == rows
    assert part.of_rows(whole[rows[0] : rows[1]]).tolist() == expected.tolist()
    assert tensor_of(name) == "w"


@pytest.mark.parametrize("name", ["w", "w[]", "w[-1]", "w[a]", "w[0::0]", "w[1,2,3,4]", "[3]", "w[1:2:3:4]"])
def test_names_that_are_no_parts(name):
    assert part_of(name) is None


@pytest.mark.parametrize(
    ("name", "why"), [("w[3]", "only 3 slices"), ("w[0:9]", "only 3 entries"), ("w[0,0,0]", "2 dim")]
)
def test_parts_that_a_tensor_does_not_have(name, why):
    with pytest.raises(ValueError, match=why):
        part_of(name).shape((3, 4))
