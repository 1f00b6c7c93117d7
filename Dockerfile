# A Tidelog broker. Needs no BuildKit.
#
#   docker build --build-arg BASE_IMAGE=python:3.12-slim --tag tidelog .
#
# BASE_IMAGE: any Debian-like image with Python 3.11 or newer and its venv; scripts/docker-base makes one where no image
# registry is within reach.
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS build
WORKDIR /src
COPY requirements-build.lock requirements-server.lock ./
# Everything by version and hash; what is published as source only is built by the locked tools, not the newest ones.
RUN python3 -m venv /opt/build \
    && /opt/build/bin/pip install --quiet --no-cache-dir --require-hashes --requirement requirements-build.lock \
    && /opt/build/bin/pip wheel --quiet --no-cache-dir --no-deps --no-build-isolation --require-hashes \
        --requirement requirements-server.lock --wheel-dir /wheels \
    && python3 -m venv --without-pip /opt/tidelog \
    && /opt/build/bin/uv pip install --quiet --no-cache --python /opt/tidelog/bin/python --no-index --no-deps /wheels/*.whl
COPY pyproject.toml LICENSE README.md* ./
COPY wire wire
COPY metadata metadata
COPY dataplane dataplane
COPY spark_connector spark_connector
COPY tidelog tidelog
RUN /opt/build/bin/pip wheel --quiet --no-cache-dir --no-deps --no-build-isolation --wheel-dir /project . \
    && /opt/build/bin/uv pip install --quiet --no-cache --python /opt/tidelog/bin/python --no-index --no-deps /project/*.whl

FROM ${BASE_IMAGE}
COPY --from=build /opt/tidelog /opt/tidelog
RUN groupadd --gid 10001 tidelog \
    && useradd --uid 10001 --gid tidelog --home-dir /data --no-create-home --shell /usr/sbin/nologin tidelog \
    && install --directory --owner tidelog --group tidelog --mode 0700 /data /secret
ENV PATH=/opt/tidelog/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TIDELOG_DATA_DIR=/data
USER tidelog
WORKDIR /data
VOLUME /data
# Healthy: the cluster's controller counts this broker among the living. The URL may hold a password: not among the
# arguments, which every user of the machine can read.
HEALTHCHECK --interval=5s --timeout=10s --start-period=60s --retries=3 \
    CMD TIDELOG_SERVER="$TIDELOG_NATS" tidelog cluster status --json | python -c 'import json, os, sys; \
brokers = json.load(sys.stdin)["brokers"]; \
sys.exit(not any(broker["id"] == os.environ["TIDELOG_ID"] and broker["alive"] for broker in brokers))'
CMD ["tidelog", "server"]
