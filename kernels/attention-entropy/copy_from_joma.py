"""Copy the kernel from joma into this package, with relative imports, as a kernel hub wants them.

    python kernels/attention-entropy/copy_from_joma.py

joma's files are the source. tests/measure/test_kernel_package.py says when the copies are old.
"""

from pathlib import Path

JOMA = Path(__file__).parents[2] / "src" / "joma"
PACKAGE = Path(__file__).parent / "torch-ext" / "attention_entropy"
COPIES = {
    "host/kernels.py": "_start.py",
    "measure/_tiles_triton.py": "_tiles.py",
    "measure/_attention_triton.py": "_attention.py",
}
IMPORTS = {
    "from joma.host.kernels import": "from ._start import",
    "from joma.measure._attention_problem import": "from ._problem import",
    "from joma.measure._tiles_triton import": "from ._tiles import",
}
OTHER_NAMES = {"`joma.measure._attention_blocks` takes all of them": "others need the matrix"}
HEAD = "# Copied from joma, src/joma/{} (Apache-2.0). Change it there.\n"


def copied(source: str) -> str:
    """The text of a copy."""
    text = (JOMA / source).read_text(encoding="utf-8")
    for old, new in {**IMPORTS, **OTHER_NAMES}.items():
        text = text.replace(old, new)
    for name in COPIES:
        text = text.replace(f"`{Path(name).stem}`", f"`{Path(COPIES[name]).stem}`")
    return HEAD.format(source) + text


def main() -> None:
    """Write all copies."""
    for source, name in COPIES.items():
        (PACKAGE / name).write_text(copied(source), encoding="utf-8")
        print(PACKAGE / name)


if __name__ == "__main__":
    main()
