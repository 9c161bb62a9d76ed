"""A GPU of labels: tensors that say cuda:0 over CPU memory, for tests of CUDA code.

    build.py      the C++ part (labels.cc): compiled, and loaded before PyTorch
    cuda.py       what the trainer uses of torch.cuda
    operators.py  operators on the device run on CPU memory; graphs record them
    order.py      which work has surely happened before which
    threads.py    threads and locks that pass on what a host thread knows
    memory.py     blocks of memory, and who touches them
    transfers.py  copies that run while the host goes on
    __main__.py   calls functions, each in a process of its own
    client.py     asks for such calls; a decorator for tests
    table.py      counts copies, launches and waits

It finds what does not depend on luck: two uses of memory that nothing orders are a
fault, in whatever order they ran here. It computes what a CPU computes.
"""
