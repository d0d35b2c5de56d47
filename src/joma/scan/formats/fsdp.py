"""Shards of FSDP as verl writes them: `model_world_size_2_rank_0.pt`, ..., one file per process.

Every weight is a DTensor: its part in this process, the shape of the whole, and a placement for each dimension of the
mesh of processes. FSDP cuts along one dimension of a tensor, perhaps among several replicas of the model (HSDP), of
which the first is read. A process may hold no row of a small tensor.
"""

from collections.abc import Sequence

from joma.scan.errors import CheckpointError
from joma.scan.formats.checkpoint import TOGETHER
from joma.scan.formats.deepspeed import JoinedFile, Open, Source, in_order, opened
from joma.scan.formats.pickles import Replicate, Shard
from joma.scan.formats.tensor_file import closed_on_error
from joma.scan.formats.torch_file import TorchFile

_MERGE = "merge them with its tool (python -m verl.model_merger)"


def fsdp_states(names: Sequence[str], open_file: Open, where: str) -> JoinedFile:
    """The weights of all shards."""
    found = [match for match in map(TOGETHER["fsdp"].fullmatch, names) if match]
    worlds = {int(match[1]) for match in found}
    if len(worlds) > 1:
        raise CheckpointError(f"{where} holds shards for {' and '.join(map(str, sorted(worlds)))} processes at once")
    ranks = {int(match[2]): match[0] for match in found}
    (world,) = worlds
    if len(ranks) != world:
        what = f"{where} holds {len(ranks)} of {world} shards of FSDP; all of them are needed"
        raise CheckpointError(what, file=found[0][0])
    files = opened(in_order(ranks, where), open_file)
    with closed_on_error(*files):
        parts: dict[str, list[Source]] = {}
        along: dict[str, int] = {}
        for name in files[0].tensors:
            parts[name], along[name] = _parts(name, files)
        note = f"every weight was joined from {world} shards of FSDP"
        return JoinedFile(where, files, parts, [note] if world > 1 else [], along)


def _parts(name: str, files: Sequence[TorchFile]) -> tuple[list[Source], int]:
    """The parts that make up a tensor, and the dimension along which they are joined; -1: the first is all of it."""
    whole, dim = _placed(files[0], name)
    if dim < 0:
        return [Source(files[0], name)], dim
    found, held = list[Source](), 0
    for file in files:  # replicas come after the first model
        if name not in file.tensors or _placed(file, name) != (whole, dim):
            raise file.wrong(f"and {files[0].name} do not agree on how {name} is cut; {_MERGE}")
        if held < whole[dim]:
            found.append(Source(file, name))
            held += file.tensors[name].shape[dim]
    shapes = [source.stored.shape for source in found]
    rest = {(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}
    if held != whole[dim] or rest != {(*whole[:dim], *whole[dim + 1 :])}:
        raise files[0].wrong(f"and the other shards do not make up {name} {whole}: {str(shapes)[:80]}; {_MERGE}")
    return found, dim


def _placed(file: TorchFile, name: str) -> tuple[tuple[int, ...], int]:
    """The shape of a whole tensor, and the dimension along which it is cut; -1: it is not."""
    sharded = file.sharded.get(name)
    if sharded is None:
        return file.tensors[name].shape, -1
    whole, placements = sharded.placed
    cuts = [each for each in placements if isinstance(each, Shard)]
    others = [each for each in placements if not isinstance(each, Shard | Replicate)]
    dim = cuts[0].get("dim") if cuts else -1
    last = not cuts or (placements[-1] is cuts[0] and type(dim) is int and 0 <= dim < len(whole))
    if others or len(cuts) > 1 or not last:
        raise file.wrong(f"cuts {name} in a way that is not of FSDP alone; {_MERGE}")
    if dim < 0 and whole != file.tensors[name].shape:
        raise file.wrong(f"holds {file.tensors[name].shape} of {name} {whole}; {_MERGE}")
    return whole, dim
