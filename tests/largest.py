"""The largest tensor that is made inside a block: what must not grow with queries times keys."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """How many numbers, and bytes, the memory behind it has; `numbers` is of one tensor, `bytes` of another perhaps."""

    def __init__(self):
        super().__init__()
        self.numbers = self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor):
                size = one.untyped_storage().nbytes()
                self.numbers, self.bytes = max(self.numbers, size // one.element_size()), max(self.bytes, size)
        return made
