# The RL-Insight server with its page; docs/container.md says how to build and run it.
FROM node:22-trixie-slim AS node

FROM python:3.13-slim-trixie AS build
# npm builds the page into the wheel.
COPY --from=node /usr/local/bin/node /usr/local/bin/node
COPY --from=node /usr/local/lib/node_modules/npm /usr/local/lib/node_modules/npm
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm
WORKDIR /source
COPY . .
# The wheel itself is installed: by its name, pip would prefer a release in the index to a development version.
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source \
    && python -m venv /opt/rl-insight \
    && wheel=$(echo /wheels/rl_insight-*.whl) \
    && /opt/rl-insight/bin/python -m pip install --no-cache-dir "${wheel}[server,fast,grpc]"

FROM python:3.13-slim-trixie
COPY --from=build /opt/rl-insight /opt/rl-insight
RUN mkdir /data && chown 10001:10001 /data
ENV PATH=/opt/rl-insight/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/data \
    RL_INSIGHT_DATA_DIR=/data
USER 10001:10001
VOLUME ["/data"]
# The page, the API and ingest; OTLP over gRPC and over HTTP.
EXPOSE 18080 4317 4318
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s CMD ["rl-insight", "server", "status"]
ENTRYPOINT ["rl-insight"]
CMD ["server", "start", "--host", "0.0.0.0"]
