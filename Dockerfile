# CPU:  docker build -t earlybird .
# CUDA: docker build -t earlybird:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 .
FROM python:3.12-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/earlybird
ENV PATH=/opt/earlybird/bin:$PATH
RUN pip install --no-cache-dir torch --index-url "$TORCH_INDEX"
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY kernels kernels
COPY asr asr
COPY lm_fusion lm_fusion
COPY streaming streaming
COPY server server
COPY recipes recipes
RUN pip install --no-cache-dir '.[server]'

FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends ffmpeg && rm -rf /var/lib/apt/lists/* \
    && useradd --system --create-home earlybird
COPY --from=build /opt/earlybird /opt/earlybird
ENV PATH=/opt/earlybird/bin:$PATH OMP_NUM_THREADS=1 NUMBA_CACHE_DIR=/tmp/numba PYTHONUNBUFFERED=1
USER earlybird
EXPOSE 8765
HEALTHCHECK --start-period=60s CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8765/healthz')"
ENTRYPOINT ["earlybird"]
CMD ["serve", "--host", "0.0.0.0", "--tokens", "/run/secrets/tokens"]
