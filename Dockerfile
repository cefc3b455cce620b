# syntax=docker/dockerfile:1
# Two images from one file: the gateway (no torch) and the worker (torch for CPU or CUDA).
#
#   docker build --target gateway -t lacuna-gateway .
#   docker build --target worker -t lacuna-worker:cuda .
#   docker build --target worker --build-arg TORCH_INDEX=ADDRESS -t lacuna-worker:cpu .
#
# The default wheels of torch carry CUDA (and run without a GPU too). ADDRESS is the index of its
# CPU wheels, as the installation page of PyTorch names it: an image of a fifth of the size.
#
# For a reproducible build pin the base by digest:
#   docker buildx imagetools inspect python:3.12-slim-bookworm     # prints the digest
#   docker build --build-arg PYTHON=python:3.12-slim-bookworm@sha256:<digest> ...
ARG PYTHON=python:3.12-slim-bookworm

# --- what both images run on: a user without rights, and a root that is never written -----------
FROM ${PYTHON} AS base
ENV PATH=/opt/lacuna/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LACUNA_DATA_DIR=/data \
    HF_HOME=/data/hub
RUN useradd --uid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin lacuna \
    && install -d -o 10001 -g 10001 -m 0700 /data
WORKDIR /data
VOLUME /data

# --- builders: third-party packages in a layer of their own, ours after them --------------------
FROM ${PYTHON} AS builder
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/lacuna
WORKDIR /src
COPY pyproject.toml constraints.txt LICENSE ./
COPY lacuna/pyproject.toml lacuna/
# Empty packages: pip resolves the dependencies, and this layer lasts until they change.
RUN mkdir service workers && touch README.md lacuna/README.md service/__init__.py workers/__init__.py \
    && grep -o '^  "lacuna[a-z_.]*"' lacuna/pyproject.toml | tr -d ' "' | tr . / | xargs mkdir -p

FROM builder AS gateway-builder
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/lacuna/bin/pip install --constraint constraints.txt ./lacuna '.[gateway]'
COPY lacuna lacuna
COPY service service
COPY workers workers
RUN /opt/lacuna/bin/pip install --no-deps --force-reinstall ./lacuna .

FROM builder AS worker-builder
ARG TORCH_INDEX=
# From its index torch alone: what torch needs is pinned, and there may be other releases of it there.
RUN --mount=type=cache,target=/root/.cache/pip \
    env ${TORCH_INDEX:+PIP_INDEX_URL="${TORCH_INDEX}"} /opt/lacuna/bin/pip install \
        --no-deps --constraint constraints.txt torch \
    && /opt/lacuna/bin/pip install --constraint constraints.txt ./lacuna '.[worker]'
COPY lacuna lacuna
COPY service service
COPY workers workers
RUN /opt/lacuna/bin/pip install --no-deps --force-reinstall ./lacuna .

# --- images ------------------------------------------------------------------------------------
FROM base AS gateway
COPY --from=gateway-builder /opt/lacuna /opt/lacuna
ENV LACUNA_HOST=0.0.0.0 LACUNA_PORT=8080
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
CMD ["lacuna", "gateway"]

FROM base AS worker
COPY --from=worker-builder /opt/lacuna /opt/lacuna
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python", "-m", "workers.health"]
CMD ["python", "-m", "workers"]
