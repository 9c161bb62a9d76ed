"""What PyTorch's compiler makes of a function."""

import shutil

import pytest
import torch


def needs_cpp(test):
    """Marks a test that compiles with the default backend."""
    # The warnings are torch's own, on import.
    test = pytest.mark.filterwarnings("ignore::DeprecationWarning")(test)
    has_compiler = shutil.which("g++") or shutil.which("clang++")
    return pytest.mark.skipif(not has_compiler, reason="no C++ compiler")(test)


def count_graphs(function, *calls):
    """Compiles a function, and lets it run as it is.

    Args:
        function: to compile; a break of its graph is an error.
        calls: arguments, of equal shapes, of one call after the other.

    Returns:
        the results, and how many operations each graph has that was compiled.
    """
    sizes = []

    def record(graph, inputs):
        sizes.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=record, fullgraph=True, dynamic=False)
    results = [compiled(**arguments) for arguments in calls]
    return results, sizes


def generated_kernels():
    """Kernels that PyTorch's default backend has made or found since the last call."""
    from torch._inductor import metrics

    count = metrics.generated_kernel_count
    metrics.reset()
    return count
