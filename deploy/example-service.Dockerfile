# SPDX-License-Identifier: Apache-2.0
# The service that compose.yaml observes: examples/llm_server, on a CUDA runtime that needs no GPU. For nothing else.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS builder
RUN apt-get update && apt-get install -y --no-install-recommends make gcc g++ libc6-dev python3-pip python3-venv
WORKDIR /source
COPY requirements requirements
RUN python3 -m venv --without-pip /opt/service && python3 -m venv --without-pip /build && \
    pip --no-cache-dir --python /opt/service/bin/python install --require-hashes --no-deps --only-binary :all: \
    -r requirements/example-service.txt && \
    pip --no-cache-dir --python /build/bin/python install --require-hashes --no-deps --only-binary :all: \
    -r requirements/cuda-runtime.txt
COPY bpf bpf
COPY tests/fakes tests/fakes
COPY examples examples
RUN mkdir /opt/service/cuda && \
    make -C tests/fakes BUILD=/opt/service/cuda CUDA_INCLUDE="$(echo /build/lib/python3*/site-packages/nvidia/cuda_runtime/include)" \
    /opt/service/cuda/libcudart.so.12 /opt/service/cuda/libllmkernels.so

FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends python3 libstdc++6 && \
    useradd --uid 10003 --no-create-home --shell /usr/sbin/nologin service && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log
COPY --from=builder /opt/service /opt/service
COPY examples/llm_server /opt/service/llm_server
USER 10003:10003
ENV LLM_CUDART=/opt/service/cuda/libcudart.so.12 LLM_KERNELS=/opt/service/cuda/libllmkernels.so PYTHONDONTWRITEBYTECODE=1
HEALTHCHECK CMD ["/usr/bin/python3", "-I", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["/opt/service/bin/python", "/opt/service/llm_server"]
CMD ["--host", "0.0.0.0", "--port", "8000"]
