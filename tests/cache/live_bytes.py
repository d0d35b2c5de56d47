"""The most bytes that tensors hold at once."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts storages that are made inside and still alive, after every operation."""

    def __init__(self):
        super().__init__()
        self.most, self.alive = 0, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        before = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        found = function(*args, **(kwargs or {}))
        for one in tree_leaves(found):
            if isinstance(one, torch.Tensor) and one.untyped_storage()._cdata not in before:
                storage = one.untyped_storage()
                self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.alive = {key: value for key, value in self.alive.items() if not value[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.alive.values()))
        return found
