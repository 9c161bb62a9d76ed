"""Streams, events and graphs of torch.cuda without a GPU: order of calls, failures.

`current` is the name of the current stream. A fake has no threads: a test that needs
two of them plays them one after the other, each with its stream.
"""

from contextlib import contextmanager
from types import SimpleNamespace


class FakeCuda:
    """Writes down the calls whose order decides, and fails where a test wants it."""

    def __init__(self):
        self.calls = []
        self.current = "main"
        self.events = 0
        self.ready = set()
        self.capture_fails = False
        self.end_fails = False
        self.recording = None
        self.register_error = 0
        self.streams = 0
        self.pools = 0

    def current_stream(self, device):
        return self._stream(self.current)

    def _stream(self, name):
        def wait(what):
            self.calls.append((name, "waits for", what.name))

        return SimpleNamespace(
            name=name,
            synchronize=lambda: self.calls.append(("synchronize", name)),
            wait_stream=wait,
            wait_event=wait,
        )

    def Stream(self, device, priority=0):
        self.streams += 1
        name = f"stream {self.streams}" + " of high priority" * (priority < 0)
        return self._stream(name)

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream.name
        try:
            yield
        finally:
            self.current = before

    def Event(self, enable_timing=False):
        self.events += 1
        name = f"event {self.events}"

        def record(stream):
            self.calls.append((self.current, "records", name))

        return SimpleNamespace(
            name=name,
            record=record,
            query=lambda: name in self.ready,
            synchronize=lambda: None,
        )

    def CUDAGraph(self):
        graph = SimpleNamespace(run=lambda: None)
        graph.replay = lambda: graph.run()

        def begin(pool, capture_error_mode):
            assert capture_error_mode == "thread_local"
            self.calls.append(("capture", pool, self.current))
            if self.capture_fails:
                raise RuntimeError("operation not permitted\nwhen stream is capturing")
            self.recording = graph

        def end():
            begun, self.recording = self.recording, None
            if begun is None or self.end_fails:
                raise RuntimeError("capture invalidated")

        graph.capture_begin, graph.capture_end = begin, end
        return graph

    def graph_pool_handle(self):
        self.pools += 1
        return f"pool {self.pools}"

    def set_device(self, device):
        self.calls.append(("current device", device))

    def synchronize(self, device):
        assert self.recording is None

    def empty_cache(self):
        assert self.recording is None

    def cudart(self):
        def register(start, size, flags):
            self.calls.append(("lock", start, size))
            return self.register_error

        return SimpleNamespace(
            cudaHostRegister=register,
            cudaHostUnregister=lambda start: self.calls.append(("unlock", start)),
        )
