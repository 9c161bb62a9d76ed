"""Device, precision, and shards."""

import os
import sys
import threading

import pytest
import torch

from trainer.config.schema import RunConfig
from trainer.machine import device
from trainer.machine.cpu import Shards, step_aside
from trainer.machine.device import autocast_dtype, choose_device, device_of
from trainer.machine.ranks import ALONE
from trainer.models.policy import playing_device
from trainer.session.build import set_up_arithmetic

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_shards_keep_order_and_use_threads():
    shards = Shards(3)
    meet = threading.Barrier(3, timeout=10)

    def work(part):
        meet.wait()  # would never pass if they ran one after another
        return part, threading.get_ident(), torch.get_num_threads()

    results = shards.map(work, [10, 20, 30])
    assert [part for part, _, _ in results] == [10, 20, 30]
    assert len({thread for _, thread, _ in results}) == 3
    assert results[0][1] == threading.get_ident()
    assert {threads for _, _, threads in results} == {1}
    shards.close()


def test_shards_wait_for_all_before_an_error_leaves():
    shards = Shards(2)
    done = threading.Event()

    def work(part):
        if part == 0:
            raise ValueError("first part")
        done.wait(0.2)
        done.set()

    with pytest.raises(ValueError, match="first part"):
        shards.map(work, [0, 1])
    assert done.is_set()
    with pytest.raises(ValueError, match="3 parts for 2"):
        shards.map(work, [1, 2, 3])
    shards.close()
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Shards(0)


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(RuntimeError, match="use --device cpu or auto"):
        choose_device("cuda")
    for name in ("gpu", "cuda:x", "tpu:0"):
        with pytest.raises(ValueError, match="must be auto, cpu, cuda or cuda:N"):
            choose_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("auto") == choose_device("cuda") == CUDA
    assert choose_device("cuda:0").index == 0
    with pytest.raises(RuntimeError, match="the last GPU is cuda:0"):
        choose_device("cuda:1")


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs that run kernels; gives the calls that choose and use them."""
    calls, zeros = [], torch.zeros
    fakes = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "set_device": lambda device: calls.append(("current", str(device))),
        "synchronize": lambda device: calls.append(("waited", str(device))),
        "get_device_capability": lambda device: (6, 1),
        "get_device_name": lambda device: "GTX 1080",
        "get_arch_list": lambda: ["sm_75", "sm_90", "compute_90"],
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)

    def kernel(*shape, device):
        calls.append(("kernel", str(device)))
        return zeros(*shape)

    monkeypatch.setattr(torch, "zeros", kernel)
    return calls


@pytest.mark.parametrize("use", [lambda name: device_of(name, ALONE), playing_device])
def test_a_numbered_gpu_becomes_the_current_one(gpus, use):
    """Or a run would also use GPU 0: for page-locking, and in PyTorch's defaults."""
    assert str(use("cuda:1")) == "cuda:1"
    assert gpus == [("current", "cuda:1"), ("kernel", "cuda:1"), ("waited", "cuda:1")]
    gpus.clear()
    assert str(use("cuda")) == "cuda"
    assert gpus == [("kernel", "cuda"), ("waited", "cuda")]
    gpus.clear()
    use("cpu")
    assert gpus == []


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:1"])
@pytest.mark.parametrize("use", [lambda name: device_of(name, ALONE), playing_device])
def test_a_gpu_without_kernels_is_told_of_at_once(gpus, monkeypatch, use, name):
    def fails(*shape, device):
        raise RuntimeError(
            "CUDA error: no kernel image is available for execution on the device\n"
            "CUDA kernel errors might be asynchronously reported at some other call"
        )

    monkeypatch.setattr(torch, "zeros", fails)
    with pytest.raises(RuntimeError) as caught:
        use(name)
    text = str(caught.value)
    assert "GTX 1080, compute capability 6.1" in text
    assert "for sm_75 sm_90 compute_90" in text
    assert "no kernel image is available" in text
    assert "use --device cpu" in text
    assert "\n" not in text


@pytest.fixture
def arithmetic():
    """Puts PyTorch's settings back."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    kept = {
        (cuda.matmul, "allow_tf32"): cuda.matmul.allow_tf32,
        (cudnn, "allow_tf32"): cudnn.allow_tf32,
        (cudnn, "benchmark"): cudnn.benchmark,
        (cudnn, "deterministic"): cudnn.deterministic,
    }
    efficient = cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()
    yield
    for (module, name), value in kept.items():
        setattr(module, name, value)
    cuda.enable_mem_efficient_sdp(efficient[0])
    cuda.enable_cudnn_sdp(efficient[1])


@pytest.mark.parametrize("precision", ["auto", "bf16", "fp32", "fp16"])
def test_fp32_on_a_gpu_is_without_tf32(arithmetic, precision):
    def of_a_cpu():
        module = getattr(torch.backends.mkldnn, "matmul", None)
        return getattr(module, "fp32_precision", None)

    before = of_a_cpu()
    for _ in range(2):  # also after a run with another precision
        set_up_arithmetic(RunConfig(precision=precision), CUDA)
        allowed = precision != "fp32"
        assert torch.backends.cuda.matmul.allow_tf32 == allowed
        assert torch.backends.cudnn.allow_tf32 == allowed
        assert of_a_cpu() == before
        torch.backends.cuda.matmul.allow_tf32 = not allowed


@pytest.mark.parametrize("kind", [CPU, CUDA])
def test_precision_that_is_asked_for_is_given(kind):
    assert autocast_dtype(kind, "fp32") is None
    assert autocast_dtype(kind, "bf16") is torch.bfloat16
    assert autocast_dtype(kind, "fp16") is torch.float16


@pytest.mark.parametrize("has_it", [True, False])
def test_automatic_precision_is_bf16_where_the_hardware_has_it(monkeypatch, has_it):
    capability = (8, 0) if has_it else (7, 5)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(device, "cpu_has_bf16", lambda: has_it)
    assert autocast_dtype(CUDA, "auto") is (torch.bfloat16 if has_it else torch.float16)
    assert autocast_dtype(CPU, "auto") is (torch.bfloat16 if has_it else None)
    assert autocast_dtype(CPU, "auto", own_code=True) is torch.bfloat16


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone has it")
@pytest.mark.parametrize(("given", "lower"), [(None, 5), ("", 5), ("0", 0), ("9", 9)])
def test_threads_step_aside(monkeypatch, given, lower):
    """By MARIO_NICE, or by 5; 0 is for a machine with other busy processes."""
    monkeypatch.delenv("MARIO_NICE", raising=False)
    if given is not None:
        monkeypatch.setenv("MARIO_NICE", given)
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    mine, other = (thread.native_id for thread in threads)
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    step_aside([mine, 2**22 + 1])  # of the second one there is none
    found = [os.getpriority(os.PRIO_PROCESS, thread) for thread in (mine, other, 0)]
    done.set()
    for thread in threads:
        thread.join()
    assert found == [min(nice + lower, 19), nice, nice]


@pytest.mark.parametrize("given", ["-1", "20", "low", "2.5"])
def test_a_priority_that_cannot_be_is_refused(monkeypatch, given):
    monkeypatch.setenv("MARIO_NICE", given)
    with pytest.raises(ValueError, match=f"0 .* to 19, got '{given}'"):
        step_aside([])
