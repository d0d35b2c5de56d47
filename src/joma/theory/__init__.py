"""What the mathematics predicts: pure functions, batched and differentiable.

They take tensors, numpy arrays, numbers and nested lists, and answer in tensors; `joma.host.arguments` has the rule.
"""
