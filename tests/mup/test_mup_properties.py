"""What holds for every tree: composition, partition, files that come back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mufree import BaseShapes, make_base_shapes, mup_scales, param_groups
from mufree.mup.rules import FAMILIES, KINDS, factors

widths = st.integers(1, 64)
axes = st.lists(st.tuples(widths, st.booleans()), max_size=4)
trees = st.dictionaries(st.text("abcxyz._0", min_size=1, max_size=8), axes, min_size=1, max_size=6)


def shapes(tree: dict[str, list[tuple[int, bool]]], grown: int) -> dict[str, tuple[int, ...]]:
    return {path: tuple(size * grown if wide else size for size, wide in shape) for path, shape in tree.items()}


def test_a_file_is_read_alike_after_mlx_lms_command_was_imported(tmp_path: Path) -> None:
    """It changes PyYAML's safe loader for the whole process."""
    import mlx_lm.lora  # noqa: F401

    made = make_base_shapes({"._": (1,)}, {"._": (2,)})
    made.save(tmp_path / "one.bsh")
    assert dict(BaseShapes.load(tmp_path / "one.bsh")) == dict(made)


@given(trees.filter(lambda tree: any(wide for shape in tree.values() for _, wide in shape)))
@settings(max_examples=60, deadline=None)
def test_files_come_back_whatever_the_paths_and_axes(tree: dict[str, list[tuple[int, bool]]]) -> None:
    """What is saved is what is loaded, and the second file has the first one's bytes."""
    made = make_base_shapes(shapes(tree, 1), shapes(tree, 2))
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder, "one.bsh"), Path(folder, "two.bsh")
        made.save(one)
        loaded = BaseShapes.load(one)
        loaded.save(two)
        assert one.read_bytes() == two.read_bytes()
    assert dict(loaded) == dict(made)
    assert loaded.dims(shapes(tree, 3)).keys() == tree.keys()


@given(
    st.sampled_from(KINDS),
    st.sampled_from(FAMILIES),
    *[st.sampled_from([1.0, 2.0, 3.0, 8.0])] * 4,
    st.sampled_from([0.125, 1.0, 3.0]),
)
def test_growing_twice_is_growing_once(
    kind: str, family: str, a: float, b: float, c: float, d: float, multiplier: float
) -> None:
    """Factors of base → middle times those of middle → target are those of base → target."""

    def of(m_in: float, m_out: float, times: float) -> tuple[float, ...]:
        row = factors(
            kind,  # type: ignore[arg-type]
            m_in=m_in,
            m_out=m_out,
            multiplier=times,
            family=family,  # type: ignore[arg-type]
            weight_decay="independent",
            scale_eps=True,
        )
        return row.init, row.lr, row.eps, row.weight_decay

    steps = zip(of(a, b, multiplier), of(c, d, 1.0), strict=True)
    assert of(a * c, b * d, multiplier) == pytest.approx([one * two for one, two in steps], rel=1e-12)


@given(st.lists(st.sampled_from([("m", 2), ("v", 1), ("s", 0)]), min_size=1, max_size=8), st.sampled_from([1, 2, 8]))
@settings(deadline=None)
def test_groups_are_a_partition(members: list[tuple[str, int]], m: int) -> None:
    """Every parameter is in exactly one group, and none is empty, whatever the user's groups are."""
    tree = {f"{name}{n}": (4 * m,) * rank for n, (name, rank) in enumerate(members)}
    tree["m"] = (4 * m, 4 * m)
    small, twice = ({path: (4 * k,) * len(shape) for path, shape in tree.items()} for k in (1, 2))
    scales = mup_scales(tree, make_base_shapes(small, twice))
    groups = param_groups(tree, scales, learning_rate=1.0, groups=[{"match": "m*", "learning_rate": 2.0}])
    paths = [path for group in groups for path in group.paths]
    assert sorted(paths) == sorted(tree)
    assert all(group.paths and group.parameters for group in groups)
