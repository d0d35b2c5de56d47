"""stories260K: a file of llama2.c becomes a model of transformers, which tells stories."""

import numpy as np
import pytest

from joma.studies.sparsity.kv_cache.run import answers
from joma.studies.sparsity.kv_cache.stories import find_stories, load_stories, written

pytest.importorskip("transformers", reason="transformers is not installed here (the extra hf)")


@pytest.fixture
def stories():
    path = find_stories()
    if path is None:
        pytest.skip("JOMA_DATA names no folder with stories260K")
    return path


def test_stories_are_fluent_and_cutting_their_cache_costs(stories):
    model = load_stories(stories)
    tokens = written(model, 4, 64, seed=0)
    assert tokens.shape == (4, 64)
    assert (tokens[:, 0] == 1).all()
    found = answers(model, tokens, ("window", "top-k"), (0.2,), 1, seed=0)
    assert found["loss"].mean() < 2.5  # of ln 512 = 6.2
    assert found["cut"][0, 0].mean() > found["cut"][1, 0].mean()


@pytest.mark.parametrize("own_head", [False, True])
def test_every_tensor_of_a_file_finds_its_place(tmp_path, own_head):
    """llama2.c turns the rows 2i and 2i + 1 of a head of queries or keys together, transformers i and i + half."""
    dim, hidden, layers, heads, kv_heads, words, length = sizes = (16, 12, 2, 2, 1, 10, 5)
    width, source = dim // heads, np.random.default_rng(0)

    def drawn(*shape):
        return source.standard_normal(shape).astype("<f4")

    # fmt: off
    by_layer = {"input_layernorm": (dim,), "self_attn.q_proj": (dim, dim), "self_attn.k_proj": (width, dim),
                "self_attn.v_proj": (width, dim), "self_attn.o_proj": (dim, dim), "post_attention_layernorm": (dim,),
                "mlp.gate_proj": (hidden, dim), "mlp.down_proj": (dim, hidden), "mlp.up_proj": (hidden, dim)}
    # fmt: on
    embedding, norm, tables, head = drawn(words, dim), drawn(dim), drawn(2, length, width // 2), drawn(words, dim)
    parts = {name: drawn(layers, *shape) for name, shape in by_layer.items()}
    header = np.array([*sizes[:5], -words if own_head else words, length], "<i4")
    path = tmp_path / "model.bin"
    path.write_bytes(b"".join(part.tobytes() for part in (
        header, embedding, *parts.values(), norm, tables, *([head] if own_head else []))))  # fmt: skip
    model = load_stories(path)
    assert not model.training
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    np.testing.assert_array_equal(state["model.embed_tokens.weight"], embedding)
    np.testing.assert_array_equal(state["model.norm.weight"], norm)
    np.testing.assert_array_equal(state["lm_head.weight"], head if own_head else embedding)
    for layer in range(layers):
        for name, part in parts.items():
            loaded, written_down = state[f"model.layers.{layer}.{name}.weight"], part[layer]
            if "q_proj" in name or "k_proj" in name:
                for row in range(len(written_down)):
                    first, within = row // width * width, row % width
                    np.testing.assert_array_equal(
                        loaded[first + within % 2 * (width // 2) + within // 2], written_down[row]
                    )
            else:
                np.testing.assert_array_equal(loaded, written_down)
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (heads, kv_heads)
    assert (model.config.max_position_embeddings, model.config.rms_norm_eps) == (length, 1e-5)


def test_a_damaged_file_of_stories_is_one_sentence(tmp_path, monkeypatch):
    folder = tmp_path / "stories260K"
    folder.mkdir()
    monkeypatch.setenv("JOMA_DATA", str(tmp_path))
    assert find_stories() is None
    path = folder / "stories260K.bin"
    path.write_bytes(b"short")
    assert find_stories() == path
    with pytest.raises(ValueError, match="must begin with a header of 28 bytes, it has 5"):
        load_stories(path)
    header = np.array([8, 16, 1, 2, 1, 32, 16], "<i4").tobytes()
    path.write_bytes(header + bytes(40))
    with pytest.raises(ValueError, match=r"must have [\d,]+ bytes by its header, it has 68"):
        load_stories(path)
    path.write_bytes(np.array([8, 16, 1, 3, 1, 32, 16], "<i4").tobytes() + bytes(40))
    with pytest.raises(ValueError, match="a header that describes no model"):
        load_stories(path)
