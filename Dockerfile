# The image of declctl, from the wheel in dist/ (`make dist` first).
# BASE_DIGEST pins the base: docker build --build-arg BASE_DIGEST=@sha256:... .
ARG BASE=python:3.13-slim
ARG BASE_DIGEST=""

FROM ${BASE}${BASE_DIGEST} AS build
COPY dist/declctl-*.whl /wheels/
RUN ["python", "-m", "venv", "/opt/declctl"]
RUN /opt/declctl/bin/python -m pip install --no-cache-dir --no-compile /wheels/declctl-*.whl
# A read-only root keeps no bytecode: each start, and each import of an edit, would compile all packages again. Without
# times of files, the same packages are the same bytes.
RUN ["/opt/declctl/bin/python", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "/opt/declctl/lib"]

FROM ${BASE}${BASE_DIGEST}
LABEL org.opencontainers.image.title="declctl" \
  org.opencontainers.image.description="Kubernetes controllers that are declared: one manifest, one shared informer cache, hot reload." \
  org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/declctl /opt/declctl
# The root may be read-only: temporary files go to /tmp, which a pod mounts as an emptyDir. There is the file, too, by
# which `kubectl exec … declctl status` finds the process.
ENV PATH=/opt/declctl/bin:$PATH \
  PYTHONDONTWRITEBYTECODE=1 \
  PYTHONUNBUFFERED=1 \
  TMPDIR=/tmp \
  DECLCTL_RUNTIME_DIR=/tmp/declctl
USER 65532:65532
ENTRYPOINT ["declctl"]
