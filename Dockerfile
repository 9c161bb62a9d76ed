# An image with everything that training needs. With docker >= 23 (BuildKit):
#
#     docker build -t mario-envpool .                                        # CPU
#     docker build -t mario-envpool:cuda \
#         --build-arg TORCH_INDEX=https://pypi.org/simple .                  # CUDA
#     docker build -t mario-envpool \
#         --build-arg PIP_INDEX_URL=https://mirror.example/simple \
#         --build-arg TORCH_INDEX=https://mirror.example/simple .            # a mirror
#     docker run --rm -it -v "$PWD/runs:/home/mario/runs" mario-envpool
#     docker run --rm -it --gpus all -v "$PWD/runs:/home/mario/runs" mario-envpool:cuda
#
# A GPU needs the NVIDIA container toolkit on the host; torch includes the CUDA
# libraries. PyPI and its mirrors have only the CUDA build of torch for Linux on x86-64,
# which also runs without a GPU. ROM files are those of the package
# gym-super-mario-bros: .dockerignore keeps all other ROM files out of the build.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

# The compiler stays: Triton and torch.compile (--compile) need one at run time.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

# pip reads PIP_INDEX_URL; only PyTorch's own index has torch for a CPU.
ARG PIP_INDEX_URL=https://pypi.org/simple
ARG TORCH=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir torch==${TORCH} --index-url ${TORCH_INDEX}

# Mounted instead of copied, so that the sources do not add a layer.
RUN --mount=type=bind,target=/source,rw \
    pip install --no-cache-dir "/source[search]"

# Runs are written to ./runs, a folder that the host may mount.
RUN useradd --create-home --uid 1000 mario && install -d -o mario /home/mario/runs
USER mario
WORKDIR /home/mario
CMD ["python", "-m", "trainer.run"]
