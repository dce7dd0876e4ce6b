from __future__ import annotations

from pathlib import Path

import pytest

from mufree import BaseShapes, Refused, ShapeMismatch, make_base_shapes
from mufree.mup.shapes import Dim

BASE = {"embed": (10, 64), "layers.0.w": (64, 64), "layers.0.b": (64,), "scale": ()}
DELTA = {"embed": (10, 128), "layers.0.w": (128, 96), "layers.0.b": (128,), "scale": ()}


def test_an_axis_is_a_width_exactly_if_it_differs() -> None:
    """What is equal in base and delta is finite."""
    shapes = make_base_shapes(BASE, DELTA)
    assert dict(shapes) == {"embed": (None, 64), "layers.0.w": (64, 64), "layers.0.b": (64,), "scale": ()}


def test_a_factory_gives_the_same_as_two_models() -> None:
    """``make(width)`` is called at the base width and at twice that."""
    asked = []

    def make(width: int) -> dict[str, tuple[int, ...]]:
        asked.append(width)
        return {"w": (width, 3), "b": (width,)}

    assert dict(make_base_shapes(make, base_width=32)) == {"w": (32, None), "b": (32,)}
    assert asked == [32, 64]


def test_a_class_of_models_is_a_factory_too() -> None:
    """Its constructor takes the width."""

    class Model(dict[str, tuple[int, ...]]):
        def __init__(self, width: int) -> None:
            super().__init__(w=(width, 3))

    assert dict(make_base_shapes(Model, base_width=32)) == {"w": (32, None)}


def test_a_file_comes_back_and_is_byte_stable(tmp_path: Path) -> None:
    """Saving what was loaded writes the same bytes; forward multipliers are kept in a comment."""
    shapes = BaseShapes(make_base_shapes(BASE, DELTA).widths, {}, {"readout": 0.125})
    shapes.save(tmp_path / "a.bsh")
    again = BaseShapes.load(tmp_path / "a.bsh")
    again.save(tmp_path / "b.bsh")
    assert dict(again) == dict(shapes)
    assert again.forward == {"readout": 0.125}
    assert (tmp_path / "a.bsh").read_bytes() == (tmp_path / "b.bsh").read_bytes()


def test_multipliers_are_target_over_base() -> None:
    """Each axis of a target stands beside its base size."""
    shapes = make_base_shapes(BASE, DELTA)
    dims = shapes.dims({**BASE, "layers.0.w": (512, 128)})
    assert dims["layers.0.w"] == (Dim(64, 512), Dim(64, 128))
    assert [d.multiplier for d in dims["layers.0.w"]] == [8.0, 2.0]
    assert dims["embed"][0] == Dim(None, 10)
    assert dims["embed"][0].multiplier == 1.0


def test_another_vocabulary_is_refused_by_layer_axis_and_sizes() -> None:
    """A finite axis of another size is no width."""
    with pytest.raises(ShapeMismatch, match=r"embed: axis 0 is 10 in the base model and 12 here"):
        make_base_shapes(BASE, DELTA).dims({**BASE, "embed": (12, 64)})


def test_a_vocabulary_that_delta_changes_is_a_width() -> None:
    """An axis declared a width may have any size."""
    dims = make_base_shapes({"w": (10, 64)}, {"w": (20, 128)}).dims({"w": (15, 64)})
    assert dims["w"][0].multiplier == 1.5


def test_changed_paths_are_named_old_and_new() -> None:
    """A path that one side lacks is listed for both."""
    with pytest.raises(ShapeMismatch, match=r"(?s)only in base shapes: scale;.*only in model: temperature;"):
        make_base_shapes(BASE, DELTA).dims({**{k: v for k, v in BASE.items() if k != "scale"}, "temperature": ()})


@pytest.mark.parametrize(
    ("base", "delta", "words"),
    [
        (BASE, BASE, "differs from base on no axis"),
        (BASE, {"embed": (10, 128)}, "only in base"),
        ({"w": (2, 3)}, {"w": (2, 3, 4)}, "has 2 axes in base and 3 in delta"),
    ],
)
def test_a_delta_that_cannot_say_what_widths_are_is_refused(base: object, delta: object, words: str) -> None:
    """Equal models, other paths, other ranks."""
    with pytest.raises(ShapeMismatch, match=words):
        make_base_shapes(base, delta)


def test_a_missing_delta_is_refused() -> None:
    """One set of shapes does not say what scales."""
    with pytest.raises(Refused, match="delta"):
        make_base_shapes(BASE)


FORWARD = "# Forward multipliers of the base model: "


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"- 1\n- 2\n", "holds no mapping"),
        (b"", "holds no mapping"),
        *[(f"w: {bad}\n".encode(), "w: .* is no list") for bad in
          ("[1, x]", "3", "[0]", "[-3]", "[true]", "[3.0]", "[[3]]")],
        (b"w: [1, 2\n v: {", "is no .bsh file: while parsing"),
        (b"\xff\xfe\x00", "is no .bsh file: 'utf-8' codec"),
        (b"w: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        (f"{FORWARD}{{bad\nw: [3]\n".encode(), "line of forward multipliers is damaged"),
        *[(f"{FORWARD}{bad}\nw: [3]\n".encode(), "not finite numbers above 0") for bad in
          ("[1]", '{"readout": "x"}', '{"readout": NaN}', '{"readout": 0}', '{"readout": true}')],
    ],
)  # fmt: skip
def test_a_file_that_is_no_base_shapes_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """Only lists of whole numbers above 0 and null, by path; in the comment only numbers above 0."""
    (tmp_path / "bäd.bsh").write_bytes(content)
    with pytest.raises(Refused, match=words):
        BaseShapes.load(tmp_path / "bäd.bsh")


def test_axes_are_reordered_by_path() -> None:
    """PyTorch's (out, in, kernel, kernel) becomes (out, kernel, kernel, in)."""
    shapes = BaseShapes({"c": (64, 32, None, None), "w": (64, None)})
    assert dict(shapes.reordered({"c": (0, 2, 3, 1)})) == {"c": (64, None, None, 32), "w": (64, None)}
    with pytest.raises(Refused, match=r"(?s)is not among.*no order of its 4 axes"):
        shapes.reordered({"x": (0,), "c": (0, 1, 2, 2)})


@pytest.mark.parametrize("width", [0, -64, 64.0, "64", True, None])
def test_a_base_width_that_is_none_is_refused(width: object) -> None:
    """Before the factory is called with it."""
    with pytest.raises(Refused, match=r"base_width: .* give a whole number above 0"):
        make_base_shapes(lambda width: {"w": (width, 3)}, base_width=width)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [3, None, (3, 4), [], {}])
def test_what_has_no_parameters_is_no_model(model: object) -> None:
    """A number, a bare shape, an empty tree, or a factory that returns nothing."""
    with pytest.raises(Refused, match="has no parameters"):
        make_base_shapes(lambda _: model)


def test_base_shapes_are_no_model() -> None:
    """They are used as they are."""
    shapes = make_base_shapes(BASE, DELTA)
    with pytest.raises(Refused, match="is BaseShapes already"):
        make_base_shapes(shapes, DELTA)
